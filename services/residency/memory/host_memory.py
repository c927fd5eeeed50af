"""Memory of the machine or container: total, and used without the page cache. Memory of a worker's processes.

A control group is limited by its own limit and by those of all its ancestors, whose memory it shares with others.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

KIB = 1024


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory, in bytes. `used` excludes the page cache, mapped or not, which the kernel drops when memory is
    short: otherwise every recently read file would look like memory that no model can have.
    """

    total: int  # the tightest limit that binds this process
    used: int  # of `total`; larger where an ancestor group or the machine has less free memory
    source: str  # `cgroup v2`, `cgroup v1`, `/proc/meminfo` or `psutil`
    pool: str = "machine"  # equal for processes that share this limit

    @property
    def free(self) -> int:
        """Unused bytes."""
        return max(0, self.total - self.used)


class _Names(NamedTuple):
    """The files of a control group, and the fields of its memory.stat that count as page cache."""

    source: str
    limits: tuple[str, ...]
    usage: str
    cache: tuple[str, ...]


_V1 = _Names(
    "cgroup v1",
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
# Above memory.high a group is throttled until it hardly runs, though not killed: this is a limit, too.
_V2 = _Names("cgroup v2", ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"))


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Reads host memory, in one or two milliseconds. `root`: the folder with `proc` and `sys`."""
    machine = _machine(root)
    levels = [machine]
    for folder, names in _groups(root):
        # Version 1 writes `no limit` as a number above all memory: ignore limits above the machine's.
        if (level := _limited(folder, names)) and level.total < machine.total:
            levels.append(level)
    tightest = min(levels, key=lambda level: level.total)
    free = min(level.free for level in levels)
    return HostMemory(tightest.total, max(0, tightest.total - free), tightest.source, tightest.pool)


def _limited(folder: Path, names: _Names) -> HostMemory | None:
    """Reads one control group; None if it has no limit or cannot be read."""
    limits = [limit for name in names.limits if (limit := read_number(folder / name)) is not None]
    usage = read_number(folder / names.usage)
    if not limits or usage is None:
        return None
    stat = _fields(folder / "memory.stat")
    used = max(0, usage - sum(stat.get(name, 0) for name in names.cache))
    return HostMemory(min(limits), used, names.source, _identity(folder))


def _identity(folder: Path) -> str:
    """Returns an id that is the same from every container; the path is not, because containers share path names."""
    found = folder.stat()
    return f"cgroup {found.st_dev}:{found.st_ino}"


def _groups(root: Path) -> Iterator[tuple[Path, _Names]]:
    """Yields the folders of this process's control groups, from its own group upwards."""
    paths = _paths(root)
    for line in _lines(root / "proc/self/mountinfo"):  # proc_pid_mountinfo(5)
        before, _, after = line.partition(" - ")
        mounted, system = before.split(), after.split()
        if len(mounted) < 5 or len(system) < 3:
            continue
        if system[0] == "cgroup2":
            names, path = _V2, paths.get("")
        elif system[0] == "cgroup" and "memory" in system[2].split(","):
            names, path = _V1, paths.get("memory")
        else:
            continue
        mount = root / mounted[4].replace("\\040", " ").lstrip("/")
        own = mount / _below(path or "/", mounted[3])
        for folder in (own, *own.parents):
            if folder.is_dir():
                yield folder, names
            if folder == mount:
                break


def _below(path: str, mounted: str) -> PurePosixPath:
    """Returns a group's path relative to a mount whose root is the group `mounted`; empty if it is not below it."""
    with contextlib.suppress(ValueError):
        relative = PurePosixPath(path).relative_to(mounted)
        if ".." not in relative.parts:
            return relative
    return PurePosixPath()


def _paths(root: Path) -> dict[str, str]:
    """Returns controller -> path of this process's group; version 2 has an empty controller name."""
    found: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _machine(root: Path) -> HostMemory:
    found = _fields(root / "proc/meminfo")
    if "MemTotal" in found and "MemAvailable" in found:
        total, available = found["MemTotal"] * KIB, found["MemAvailable"] * KIB
        return HostMemory(total, max(0, total - available), "/proc/meminfo")
    memory = psutil.virtual_memory()
    return HostMemory(memory.total, max(0, memory.total - memory.available), "psutil")


def _lines(path: Path) -> list[str]:
    """Returns the lines of a small file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def read_number(path: Path) -> int | None:
    """Returns the number in a file; None for `max`, and if the file is missing."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None


def _fields(path: Path) -> dict[str, int]:
    """Parses lines of `name number` or `name: number kB`; skips values that are not numbers."""
    found = {}
    for line in _lines(path):
        name, _, rest = line.replace(":", " ", 1).partition(" ")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0])
    return found


_LINE = re.compile(r"^(RssAnon|RssShmem|RssFile|VmHWM):\s+(\d+) kB$", re.MULTILINE)  # proc_pid_status(5)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process and its children, in bytes.

    It is resident memory, not the proportional share (PSS), for which the kernel would walk all pages of a large model
    and block its allocations meanwhile. So libraries that a worker and its children share count for each.
    """

    held: int = 0  # anonymous and shared memory: the part that HostMemory.used includes
    mapped: int = 0  # resident pages of files, such as a GGUF: the kernel may drop and read them again
    peak: int = 0  # the sum of each process's peak of held and mapped

    @property
    def total(self) -> int:
        """Held and mapped bytes."""
        return self.held + self.mapped


def read_process_memory(pid: int, root: Path = Path("/")) -> ProcessMemory:
    """Reads a worker's memory, in a few milliseconds: call it in a thread. Zeros for a process that is gone.

    Reading /proc/PID/status costs the worker nothing. Outside Linux psutil reports one figure, without held and mapped
    apart. `root`: the folder with `proc`.
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
