"""The sources of all memory figures, in one class, so that a test can replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from services.residency.memory.capacity import Capacity, Room
from services.residency.memory.device_memory import DeviceMemory, read_devices
from services.residency.memory.host_memory import HostMemory, read_host_memory
from services.residency.memory.memory_estimate import HOST, budget_of
from services.residency.memory.process_memory import ProcessMemory, read_process_memory
from services.settings.settings import ResidencySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All memory figures at one moment."""

    host: HostMemory
    devices: tuple[DeviceMemory, ...]
    workers: Mapping[int, ProcessMemory]  # by process id

    def totals(self) -> dict[str, tuple[int, int]]:
        """Returns (total, used) bytes of every device."""
        return {
            HOST: (self.host.total, self.host.used),
            **{device.name: (device.total, device.used) for device in self.devices},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The functions that read memory."""

    host: Callable[[], HostMemory] = read_host_memory
    devices: Callable[[], list[DeviceMemory]] = read_devices
    process: Callable[[int], ProcessMemory] = read_process_memory

    def read(self, pids: Iterable[int] = ()) -> Seen:
        """Reads host, devices and the given processes; blocks for milliseconds."""
        return Seen(
            host=self.host(), devices=tuple(self.devices()), workers={pid: self.process(pid) for pid in pids if pid}
        )

    def capacity(self, settings: ResidencySettings) -> Capacity:
        """Returns the remaining capacity of every device, within the budgets and below the threshold."""
        rooms = {}
        for place, (total, used) in self.read().totals().items():
            budget, _ = budget_of(place, settings)
            rooms[place] = Room(limit=min(budget or total, total), free=int(total * settings.threshold) - used)
        return Capacity(rooms)
