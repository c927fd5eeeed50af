"""Memory of the GPU on which llama.cpp computes with Vulkan, from the best source that it has.

- An NVIDIA GPU: NVML, which counts all processes.
- A GPU of the driver amdgpu: its files in sysfs, which count all processes, too.
- Any other GPU has no such source: Vulkan tells a process only its own use. Then `used` is what others took when a
  probe process asked last, and the reservations of allm's models count in addition (`DeviceMemory.live` is False).
  Admission asks again before a load while no model of allm is on the GPU.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from services.residency.memory.device_memory import DeviceMemory
from services.worker.devices import FoundDevice, RuntimeDevices

KIND = "vulkan"
_TOTAL, _USED, _USED_SHARED = "mem_info_vram_total", "mem_info_vram_used", "mem_info_gtt_used"  # amdgpu's, in bytes


class VulkanMemory:
    """The memory of one GPU. `ask`: starts a probe process; `root`: the folder with `sys`."""

    def __init__(
        self, found: FoundDevice, ask: Callable[[], Awaitable[RuntimeDevices]], root: Path = Path("/")
    ) -> None:
        self._found: FoundDevice | None = found
        self._name = found.name
        self._ask = ask
        self._root = root
        self._live = False

    def read(self, others: Iterable[DeviceMemory]) -> DeviceMemory | None:
        """Returns the memory; None if it cannot be read. Quick. `others`: the GPUs that NVML reads."""
        found = self._found
        if found is None or not found.total:
            return None
        pool = f"{KIND} {found.bus or found.description}"
        for each in others:
            if each.bus and each.bus == found.bus:
                self._live = True
                return replace(each, name=found.name, pool=pool)
        if figures := self._amdgpu(found):
            self._live = True
            return DeviceMemory(found.name, *figures, pool=pool, bus=found.bus)
        self._live = False
        return DeviceMemory(found.name, found.total, found.total - found.free, pool=pool, bus=found.bus, live=False)

    async def refresh(self) -> None:
        """Starts a probe if there is no live source. Call it while no model of allm is on the GPU. Never raises."""
        if not self._live:
            self._found = (await self._ask()).first(KIND)

    @property
    def name(self) -> str:
        """The worker's name of the GPU, such as `vulkan:0`."""
        return self._name

    def _amdgpu(self, found: FoundDevice) -> tuple[int, int] | None:
        """Returns total and used bytes from sysfs. An integrated GPU uses the host's memory (GTT), too."""
        folder = self._root / "sys/bus/pci/devices" / found.bus
        if not found.bus or (used := _number(folder / _USED)) is None or (total := _number(folder / _TOTAL)) is None:
            return None
        if not found.shares_host:
            return total, used
        return found.total, used + (_number(folder / _USED_SHARED) or 0)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdecimal() else None
