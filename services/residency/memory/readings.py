"""The sources of all memory figures, in one class, so that a test can replace them.

The remaining capacity of host and GPUs is read anew for every reservation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from services.residency.memory.device_memory import DeviceMemory, VulkanMemory, read_devices
from services.residency.memory.host_memory import HostMemory, ProcessMemory, read_host_memory, read_process_memory
from services.residency.memory.memory_estimate import HOST, budget_of, share_of
from services.residency.memory.reservation import Reservation
from services.settings.settings import ResidencySettings


@dataclass(frozen=True, slots=True)
class Room:
    """The capacity of one device (host or GPU), in bytes."""

    limit: int  # the most that all models may take together: the configured budget, or all memory
    free: int  # memory below the threshold that neither models nor other programs use


_NO_ROOM = Room(0, 0)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of every device that can be read; on any other one nothing fits."""

    rooms: Mapping[str, Room]

    def missing(self, devices: Mapping[str, int], others: Iterable[Reservation]) -> dict[str, int]:
        """Returns the bytes per device that must become free for `devices`, in bytes, to fit next to
        `others`; empty if they fit.

        They fit if, on every device, (a) all reservations together are within the limit, and (b) these bytes are within
        the free memory minus what the others have reserved and not used yet.
        """
        found = {}
        others = list(others)
        for device, wanted in devices.items():
            room = self.rooms.get(device, _NO_ROOM)
            if wanted <= 0:
                continue
            reserved = sum(each.devices.get(device, 0) for each in others)
            unclaimed = sum(each.unclaimed.get(device, 0) for each in others)
            short = wanted - min(room.limit - reserved, room.free - unclaimed)
            if short > 0:
                found[device] = short
        return found


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """The monitor's last reading."""

    host: HostMemory
    devices: tuple[DeviceMemory, ...]
    residents: tuple[Reservation, ...]  # this service's own


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


async def _nothing(device: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The functions that read memory."""

    host: Callable[[], HostMemory] = read_host_memory
    devices: Callable[[], list[DeviceMemory]] = read_devices
    process: Callable[[int], ProcessMemory] = read_process_memory
    # Reads a device again that has no live figures; does nothing for any other. Called while no model is on the device.
    refresh: Callable[[str], Awaitable[None]] = _nothing

    @classmethod
    def of(cls, visible: str, vulkan: VulkanMemory | None) -> Readings:
        """Returns the machine's readings. `visible`: see read_devices; `vulkan`: the GPU of llama.cpp, if any."""
        if vulkan is None:
            return cls(devices=lambda: read_devices(visible))

        def devices() -> list[DeviceMemory]:
            found = read_devices(visible)
            return [*found, *([one] if (one := vulkan.read(found)) else [])]

        async def refresh(device: str) -> None:
            if device == vulkan.name:
                await vulkan.refresh()

        return cls(devices=devices, refresh=refresh)

    def read(self, pids: Iterable[int] = ()) -> Seen:
        """Reads host, devices and the given processes; blocks for milliseconds."""
        return Seen(
            host=self.host(), devices=tuple(self.devices()), workers={pid: self.process(pid) for pid in pids if pid}
        )

    def capacity(self, settings: ResidencySettings) -> Capacity:
        """Returns the remaining capacity of every device, within the budgets and below the threshold."""
        rooms = {}
        for device, (total, used) in self.read().totals().items():
            budget, _ = budget_of(device, settings)
            usable = int(total * share_of(device, settings.threshold))
            rooms[device] = Room(limit=min(budget or total, total), free=usable - used)
        return Capacity(rooms)
