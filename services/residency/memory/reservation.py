"""Memory reserved by one service process for one model that is loaded or loading, its key, and why one is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.errors import ModelNotReady, OutOfMemory
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RuntimeSpec


class ResidentKey(NamedTuple):
    """The identity of a model in memory."""

    model_id: str
    generation: int
    runtime: str


def resident_key(descriptor: ModelDescriptor, runtime: RuntimeSpec) -> ResidentKey:
    """Returns the key of a model under a runtime."""
    return ResidentKey(descriptor.id, descriptor.generation, runtime.name)


class NeverFits(OutOfMemory):
    """The model exceeds a budget or the machine. Retrying does not help."""


class NoRoom(OutOfMemory):
    """The model does not fit next to the models in use; it may fit later."""


class TooManyModels(ModelNotReady):
    """As many models as allowed are in memory, and all of them are in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A row of the ledger. Its owner changes it with `dataclasses.replace` and writes it with `Ledger.touch`."""

    id: str  # unique: a reloaded model gets a new one
    address: str  # the owner's ResidencyService: `host:port` or `unix:/path`
    replica: str  # the owner's name, such as `text-1`
    key: ResidentKey
    devices: Mapping[str, int]  # reserved bytes by device
    loading: bool = True  # until the model is in memory
    busy: bool = True  # in use or loading: nobody may ask for it
    pinned: bool = False  # an operator keeps it in memory: nobody may ask for it
    # Seconds since the epoch: a clock that processes share. 0: it is evicted first (Slot.order).
    last_used: float = 0.0
    # Bytes in use that `Room.free` already counts as used. Excludes pages of a mapped file where the system counts
    # those as free (ProcessMemory separates them): otherwise nobody would have them reserved.
    measured: Mapping[str, int] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """True if it may be evicted."""
        return not (self.loading or self.busy or self.pinned)

    @property
    def unclaimed(self) -> dict[str, int]:
        """Bytes by device that are reserved and not used yet: they look free, but are taken."""
        return {device: max(0, count - self.measured.get(device, 0)) for device, count in self.devices.items()}


class Full(Exception):
    """A reservation does not fit. Nothing was reserved.

    Attributes:
        missing: bytes that must become free by device; at least one device.
        holders: every reservation on this host that holds memory on one of those devices, including the caller's own,
            idle or not; the least recently used first.
    """

    def __init__(self, missing: Mapping[str, int], holders: Sequence[Reservation]) -> None:
        super().__init__(f"missing {dict(missing)}")
        self.missing = dict(missing)
        self.holders = list(holders)
