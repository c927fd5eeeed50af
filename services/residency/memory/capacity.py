"""The remaining capacity of this machine's memory: host and GPUs, read anew for every reservation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.residency.memory.reservation import Reservation


@dataclass(frozen=True, slots=True)
class Room:
    """The capacity of one device (host or GPU), in bytes."""

    limit: int  # the most that all models may take together: the configured budget, or all memory
    free: int  # memory below the threshold that neither models nor other programs use


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of every limited device; a device that is not listed is unlimited."""

    rooms: Mapping[str, Room]

    def missing(self, places: Mapping[str, int], others: Iterable[Reservation]) -> dict[str, int]:
        """Returns the bytes per device that must become free for `places` to fit next to `others`; empty if they fit.

        They fit if, on every device, (a) all reservations together are within the limit, and (b) these bytes are within
        the free memory minus what the others have reserved and not used yet.
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
