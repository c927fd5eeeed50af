"""Memory and residents of this service at one moment, for observers."""

from __future__ import annotations

from dataclasses import dataclass

from services.residency.memory.device_memory import DeviceMemory
from services.residency.memory.host_memory import HostMemory
from services.residency.memory.reservation import Reservation


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The monitor's last reading."""

    host: HostMemory
    devices: tuple[DeviceMemory, ...]
    residents: tuple[Reservation, ...]  # this service's own
