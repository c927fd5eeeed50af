"""Memory of the GPUs, by NVML: of all processes on the machine, also those of others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One GPU; bytes."""

    name: str  # as workers know it: `cuda:0`
    total: int
    used: int  # by whomever, and what the driver keeps for itself
    # Process id -> bytes. Empty where NVML does not tell; in a container these are ids outside of it: no worker's.
    processes: Mapping[int, int] = field(default_factory=dict)
    pool: str = ""  # which GPU it really is; two containers may both call theirs `cuda:0`

    @property
    def free(self) -> int:
        """What nobody uses."""
        return max(0, self.total - self.used)


def read_devices(visible: str = "") -> list[DeviceMemory]:
    """Reads them now, in the order in which workers count them (environment.py); empty without a driver. Never raises.

    `visible` is CUDA_VISIBLE_DEVICES (ResidencySettings.visible_devices); empty: all. A GPU that does not answer is
    left out; the others keep their names. On Metal there is nothing to read: GPU and host share one memory, and the
    host's figures are those that count. Takes milliseconds a GPU: call it in a thread.
    """
    try:
        if not _nvml.ready:
            pynvml.nvmlInit()
            _nvml.ready = True
        chosen = _chosen(visible)
        return [found for index, handle in enumerate(chosen) if (found := _read(f"cuda:{index}", handle))]
    except Exception as error:  # whatever a driver does: without its figures allm serves all the same
        log.debug("no GPU can be read", extra={"why": str(error)})
        _nvml.ready = False  # the driver may have been away, or not be there yet
        return []


class _Nvml:
    """Whether the library was started."""

    ready = False


_nvml = _Nvml()


def _chosen(visible: str) -> list[Any]:
    """A handle for every GPU that CUDA shows to workers; None for one that is lost."""
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
            break  # CUDA shows none of those after it either
    return chosen


def _read(name: str, handle: Any) -> DeviceMemory | None:
    memory = None if handle is None else _asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is None:
        return None
    processes = {
        each.pid: each.usedGpuMemory
        for each in _asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        if each.usedGpuMemory is not None
    }
    pool = str(_asked(pynvml.nvmlDeviceGetUUID, handle) or name)
    return DeviceMemory(name, int(memory.total), int(memory.used), processes, pool)


def _asked(call: Any, about: Any) -> Any:
    """What NVML answers; None where it cannot."""
    try:
        return call(about)
    except pynvml.NVMLError as error:
        log.debug("NVML: %s", error)
        return None
