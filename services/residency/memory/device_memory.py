"""Memory of NVIDIA GPUs by NVML, over all processes on the machine, including those of other users."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml

from services.residency.memory.host_memory import read_host_memory

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
    """Reads GPU memory in the workers' device order (environment.py); empty without a driver. Never raises.

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
