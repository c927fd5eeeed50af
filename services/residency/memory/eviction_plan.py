"""The eviction plan for a model that does not fit: the victims to unload, and the holders worth waiting for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.byte_count import bytes_word
from services.residency.memory.reservation import Reservation

MAX_NAMED = 4  # models of a kind that a message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPlan:
    """The holders on devices that are too full, by state; the least recently used first."""

    missing: Mapping[str, int]  # bytes that must become free, by device
    idle: Sequence[Reservation]
    busy: Sequence[Reservation]  # in use, loading, or being unloaded
    staying: Sequence[Reservation]  # pinned, or excluded for another reason

    @property
    def victims(self) -> list[Reservation]:
        """The idle models to unload, as few as suffice; empty if all of them together do not suffice.

        The least recently used go first. One of them stays if a larger one, chosen after it, makes its eviction
        unnecessary.
        """
        chosen: list[Reservation] = []
        for holder in self.idle:
            if self._covered(chosen):
                break
            if any(holder.devices.get(device) for device in self.missing):
                chosen.append(holder)
        if not self._covered(chosen):
            return []
        for holder in reversed(chosen.copy()):
            if self._covered(rest := [one for one in chosen if one is not holder]):
                chosen = rest
        return chosen

    @property
    def hopeful(self) -> bool:
        """True if the model would fit once the models that are in use now are idle."""
        return self._covered([*self.idle, *self.busy])

    def words(self) -> str:
        """Returns the holders of memory as text for a refusal's message."""
        kinds = (("could be unloaded", self.idle), ("in use", self.busy), ("to stay in memory", self.staying))
        listed = [f"{name}: {_names(holders)}" for name, holders in kinds if holders]
        return "; ".join(listed) or "no model holds any of it"

    def _covered(self, going: Iterable[Reservation]) -> bool:
        going = list(going)
        return all(
            sum(one.devices.get(device, 0) for one in going) >= wanted for device, wanted in self.missing.items()
        )


def look_ahead(
    missing: Mapping[str, int],
    holders: Iterable[Reservation],
    stays: Callable[[Reservation], bool],
    refused: Callable[[Reservation], bool],
) -> EvictionPlan:
    """Sorts the holders by state. `stays`: never a victim; `refused`: its owner has refused, so it is in use."""
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
    named = [f"{one.key.model_id} ({bytes_word(sum(one.devices.values()))})" for one in holders[:MAX_NAMED]]
    more = len(holders) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
