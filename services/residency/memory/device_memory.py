"""Memory of GPUs over all processes on the machine, including those of other users.

NVIDIA's GPUs are read by NVML. The GPU on which llama.cpp computes with Vulkan is read from the best source it has:

- An NVIDIA GPU: NVML, which counts all processes.
- A GPU of the driver amdgpu: its files in sysfs, which count all processes, too.
- Any other GPU has no such source: Vulkan tells a process only its own use. Then `used` is what others took when a
  probe process asked last, and the reservations of allm's models count in addition (`DeviceMemory.live` is False).
  Admission asks again before a load while no model of allm is on the GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pynvml

from services.residency.memory.host_memory import read_host_memory, read_number
from services.worker.devices import FoundDevice, RuntimeDevices

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one GPU, in bytes."""

    name: str  # the worker's device name: `cuda:0`
    total: int
    used: int  # by all processes and the driver itself
    # Process id -> bytes. Empty if NVML does not report it. In a container these are the host's ids: no worker's.
    processes: Mapping[int, int] = field(default_factory=dict)
    pool: str = ""  # the GPU's UUID; two containers may both name theirs `cuda:0`
    bus: str = ""  # PCI address such as `0000:c1:00.0`; empty: unknown
    live: bool = True  # whether `used` contains what workers take now; else only what others took when it was read

    @property
    def free(self) -> int:
        """Unused bytes."""
        return max(0, self.total - self.used)


def read_devices(visible: str = "") -> list[DeviceMemory]:
    """Reads GPU memory in the workers' device order; empty without a driver. Never raises.

    `visible` is CUDA_VISIBLE_DEVICES (ResidencySettings.visible_devices); empty: all. A GPU that does not answer is
    omitted; the others keep their names. Metal has nothing to read: GPU and host share one memory, and the host's
    figures count. Takes milliseconds per GPU: call it in a thread.
    """
    try:
        if not _nvml.ready:
            pynvml.nvmlInit()
            _nvml.ready = True
        chosen = _chosen(visible)
        return [found for index, handle in enumerate(chosen) if (found := _read(f"cuda:{index}", handle))]
    except Exception as error:  # whatever the driver raises: nothing is admitted to a GPU without its figures
        log.debug("no GPU can be read", extra={"why": str(error)})
        _nvml.ready = False  # the driver may have been restarted, or may start later
        _nvml.problem = str(error)
        return []


def why_unreadable(device: str) -> str:
    """Returns why the last reading has no memory of a device such as `cuda:0`."""
    if not device.startswith("cuda"):
        return "it is gone, or its driver does not answer"
    why = "NVML does not list it" if _nvml.ready else f"NVML: {_nvml.problem or 'it was not asked yet'}"
    return f"{why}; a container needs the driver's libraries (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"


class _Nvml:
    """The state of the NVML library: whether it is initialised."""

    ready = False
    problem = ""  # of the last reading that failed


_nvml = _Nvml()


def _chosen(visible: str) -> list[Any]:
    """Returns a handle for every GPU that CUDA shows to workers; None for a lost one."""
    handles = [_asked(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(pynvml.nvmlDeviceGetCount())]
    if not visible:
        return handles
    names = {str(_asked(pynvml.nvmlDeviceGetUUID, handle)): handle for handle in handles if handle is not None}
    chosen: list[Any] = []
    for word in (part.strip() for part in visible.split(",")):
        if word.isdecimal() and int(word) < len(handles):
            chosen.append(handles[int(word)])
        elif word.startswith("MIG-"):
            chosen.append(_asked(pynvml.nvmlDeviceGetHandleByUUID, word))
        elif word.startswith("GPU-") and (found := [names[name] for name in names if name.startswith(word)]):
            chosen.append(found[0])
        else:
            break  # CUDA ignores all entries after an invalid one
    return chosen


def _read(name: str, handle: Any) -> DeviceMemory | None:
    memory = None if handle is None else _memory(handle)
    if memory is None:
        return None
    total, used = memory
    processes = {
        each.pid: each.usedGpuMemory
        for each in _asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        if each.usedGpuMemory is not None
    }
    pool = str(_asked(pynvml.nvmlDeviceGetUUID, handle) or name)
    bus = _asked(pynvml.nvmlDeviceGetPciInfo, handle)
    return DeviceMemory(name, total, used, processes, pool, _address(bus.busId) if bus else "")


def _memory(handle: Any) -> tuple[int, int] | None:
    """Returns total and used bytes; the host's where GPU and host share one memory, for which NVML has no figures."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        log.debug("NVML: %s", error)
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            return None
        host = read_host_memory()
        return host.total, host.used
    return int(memory.total), int(memory.used)


def _address(bus: str | bytes) -> str:
    """Converts NVML's `00000000:C1:00.0` to the kernel's `0000:c1:00.0`."""
    text = bus.decode() if isinstance(bus, bytes) else bus
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _asked(call: Any, about: Any) -> Any:
    """Calls NVML; returns None on an NVML error."""
    try:
        return call(about)
    except pynvml.NVMLError as error:
        log.debug("NVML: %s", error)
        return None


KIND = "vulkan"
_TOTAL, _USED, _USED_SHARED = "mem_info_vram_total", "mem_info_vram_used", "mem_info_gtt_used"  # amdgpu's, in bytes


class VulkanMemory:
    """The memory of one GPU. `ask`: starts a probe process; `root`: the folder with `sys`."""

    def __init__(
        self, found: FoundDevice, ask: Callable[[], Awaitable[RuntimeDevices]], root: Path = Path("/")
    ) -> None:
        self._found: FoundDevice | None = found
        self.name = found.name  # the worker's name, such as `vulkan:0`
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

    def _amdgpu(self, found: FoundDevice) -> tuple[int, int] | None:
        """Returns total and used bytes from sysfs. An integrated GPU uses the host's memory (GTT), too."""
        folder = self._root / "sys/bus/pci/devices" / found.bus
        if (
            not found.bus
            or (used := read_number(folder / _USED)) is None
            or (total := read_number(folder / _TOTAL)) is None
        ):
            return None
        if not found.shares_host:
            return total, used
        return found.total, used + (read_number(folder / _USED_SHARED) or 0)
