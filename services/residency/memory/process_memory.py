"""Memory of a worker and its child processes.

Read from /proc/PID/status, which costs the worker nothing. It is resident memory, not the proportional share (PSS), for
which the kernel would walk all pages of a large model and block its allocations meanwhile. So libraries that a worker
and its children share count for each. Outside Linux psutil reports one figure, without held and mapped apart.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

_LINE = re.compile(r"^(RssAnon|RssShmem|RssFile|VmHWM):\s+(\d+) kB$", re.MULTILINE)  # proc_pid_status(5)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process and its children, in bytes."""

    held: int = 0  # anonymous and shared memory: the part that HostMemory.used includes
    mapped: int = 0  # resident pages of files, such as a GGUF: the kernel may drop and read them again
    peak: int = 0  # the sum of each process's peak of held and mapped

    @property
    def total(self) -> int:
        """Held and mapped bytes."""
        return self.held + self.mapped


def read_process_memory(pid: int, root: Path = Path("/")) -> ProcessMemory:
    """Reads a worker's memory, in a few milliseconds: call it in a thread. Zeros for a process that is gone.

    `root`: the folder with `proc`.
    """
    found = [_read(each, root) for each in _family(pid, root)]
    return ProcessMemory(
        sum(each.held for each in found), sum(each.mapped for each in found), sum(each.peak for each in found)
    )


def _family(pid: int, root: Path) -> list[int]:
    """Returns a process and all its descendants. Omits processes that end meanwhile."""
    if not (root / f"proc/{pid}/task/{pid}/children").exists():  # not on every kernel: psutil scans all processes
        with contextlib.suppress(psutil.Error):
            return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        return [pid]
    found = [pid]
    for parent in found:  # the list grows during the loop
        with contextlib.suppress(psutil.Error):
            for thread in psutil.Process(parent).threads():
                with contextlib.suppress(OSError):
                    started = (root / f"proc/{parent}/task/{thread.id}/children").read_text(encoding="ascii")
                    found += [int(child) for child in started.split()]
    return found


def _read(pid: int, root: Path) -> ProcessMemory:
    try:
        text = (root / f"proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _elsewhere(pid) if not (root / "proc/self").exists() else ProcessMemory()
    found = {name: int(kib) * 1024 for name, kib in _LINE.findall(text)}
    return ProcessMemory(
        held=found.get("RssAnon", 0) + found.get("RssShmem", 0),
        mapped=found.get("RssFile", 0),
        peak=found.get("VmHWM", 0),
    )


def _elsewhere(pid: int) -> ProcessMemory:
    """Reads by psutil, without /proc."""
    try:
        size = psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return ProcessMemory()
    return ProcessMemory(held=size, peak=size)
