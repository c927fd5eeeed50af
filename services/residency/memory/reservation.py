"""Memory that is set aside for one loaded model, or one that is being loaded, by one service process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.residency.resident import ResidentKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A row of the ledger. Its owner changes it with `dataclasses.replace` and tells the ledger by `Ledger.touch`."""

    id: str  # of this reservation alone: a model that is loaded again gets a new one
    address: str  # of its owner, where ResidencyService answers: `host:port` or `unix:/path`
    replica: str  # its owner's name, such as `text-1`
    key: ResidentKey
    places: Mapping[str, int]  # bytes reserved
    loading: bool = True  # until it is in memory
    busy: bool = True  # a request runs on it, or it is loading: nobody may ask for it
    pinned: bool = False  # an operator wants it in memory: nobody may ask for it
    last_used: float = 0.0  # seconds since 1970: the clock that processes share
    # Bytes that it takes by now of what `Room.free` counts as used. Pages of a mapped file are not among them where the
    # system counts those as free (ProcessMemory tells them apart): else they would be reserved by nobody.
    measured: Mapping[str, int] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether it may be asked to go."""
        return not (self.loading or self.busy or self.pinned)

    @property
    def unclaimed(self) -> dict[str, int]:
        """Bytes of each place that are reserved and not used yet: free to the eye, and all the same taken."""
        return {place: max(0, count - self.measured.get(place, 0)) for place, count in self.places.items()}


class Full(Exception):
    """A reservation does not fit. Nothing was reserved.

    Attributes:
        missing: bytes of each place that would have to become free, at least one place.
        holders: every reservation on this host that holds something in one of those places, the least recently used
            first: others' and the caller's own, idle or not.
    """

    def __init__(self, missing: Mapping[str, int], holders: Sequence[Reservation]) -> None:
        super().__init__(f"missing {dict(missing)}")
        self.missing = dict(missing)
        self.holders = list(holders)
