"""What could become free for a model that does not fit: who may be asked to go, and whom waiting for may help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.byte_count import bytes_word
from services.residency.memory.reservation import Reservation

MAX_NAMED = 4  # models of a kind that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPlan:
    """The holders of places that are too full, sorted by what they are doing; the least recently used first."""

    missing: Mapping[str, int]  # bytes that must become free, by place
    idle: Sequence[Reservation]
    busy: Sequence[Reservation]  # in use, loading, or on their way out
    staying: Sequence[Reservation]  # pinned, or never to be asked for another reason

    @property
    def victims(self) -> list[Reservation]:
        """The idle ones to ask, as few as suffice; none where all of them together do not.

        The least recently used go first; one of them whose going turns out to be needless, because a larger one had
        to be asked as well, stays.
        """
        chosen: list[Reservation] = []
        for holder in self.idle:
            if self._covered(chosen):
                break
            if any(holder.places.get(place) for place in self.missing):
                chosen.append(holder)
        if not self._covered(chosen):
            return []
        for holder in reversed(chosen.copy()):
            if self._covered(rest := [one for one in chosen if one is not holder]):
                chosen = rest
        return chosen

    @property
    def hopeful(self) -> bool:
        """Whether it would fit once those that are in use now are not any more."""
        return self._covered([*self.idle, *self.busy])

    def words(self) -> str:
        """Who holds memory, as a sentence for the message of a refusal."""
        kinds = (("could be unloaded", self.idle), ("in use", self.busy), ("to stay in memory", self.staying))
        said = [f"{name}: {_names(holders)}" for name, holders in kinds if holders]
        return "; ".join(said) or "no model holds any of it"

    def _covered(self, going: Iterable[Reservation]) -> bool:
        going = list(going)
        return all(sum(one.places.get(place, 0) for one in going) >= wanted for place, wanted in self.missing.items())


def look_ahead(
    missing: Mapping[str, int],
    holders: Iterable[Reservation],
    stays: Callable[[Reservation], bool],
    refused: Callable[[Reservation], bool],
) -> EvictionPlan:
    """Sorts the holders. `stays`: not to be asked whatever it does; `refused`: it was asked, and is in use."""
    idle: list[Reservation] = []
    busy: list[Reservation] = []
    staying: list[Reservation] = []
    for holder in holders:
        if stays(holder) or holder.pinned:
            staying.append(holder)
        else:
            (idle if holder.idle and not refused(holder) else busy).append(holder)
    return EvictionPlan(missing=missing, idle=idle, busy=busy, staying=staying)


def _names(holders: Sequence[Reservation]) -> str:
    named = [f"{one.key.model_id} ({bytes_word(sum(one.places.values()))})" for one in holders[:MAX_NAMED]]
    more = len(holders) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
