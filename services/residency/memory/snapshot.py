"""Memory and residents of this service at one moment, for whoever watches."""

from __future__ import annotations

from dataclasses import dataclass

from services.residency.memory.device_memory import DeviceMemory
from services.residency.memory.host_memory import HostMemory
from services.residency.memory.reservation import Reservation


@dataclass(frozen=True, slots=True)
class Snapshot:
    """As the monitor last saw it."""

    host: HostMemory
    devices: tuple[DeviceMemory, ...]
    residents: tuple[Reservation, ...]  # this service's own
