"""What the places of this machine can still take: read anew for every reservation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.residency.memory.reservation import Reservation


@dataclass(frozen=True, slots=True)
class Room:
    """One place, in bytes."""

    limit: int  # what all models may take of it together: the budget that is set, or all there is
    free: int  # what nobody uses at this moment, below the threshold: neither models nor what else runs on the machine


@dataclass(frozen=True, slots=True)
class Capacity:
    """Every place that has a limit; a place that is not named takes whatever is asked of it."""

    rooms: Mapping[str, Room]

    def missing(self, places: Mapping[str, int], others: Iterable[Reservation]) -> dict[str, int]:
        """Bytes of each place that would have to become free for `places` to fit beside others; empty: they fit.

        They fit where, in every place, (a) all reservations are within the limit together, and (b) these bytes are
        within what is free less what the others have reserved and not used yet.
        """
        found = {}
        others = list(others)
        for place, wanted in places.items():
            room = self.rooms.get(place)
            if room is None or wanted <= 0:
                continue
            reserved = sum(each.places.get(place, 0) for each in others)
            unclaimed = sum(each.unclaimed.get(place, 0) for each in others)
            short = wanted - min(room.limit - reserved, room.free - unclaimed)
            if short > 0:
                found[place] = short
        return found
