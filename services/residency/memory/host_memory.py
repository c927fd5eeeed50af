"""Memory of the machine, or of the container: what there is, and what is taken for good.

A control group is limited by itself and by every group above it, of which it shares the memory with others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

KIB = 1024


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes. `used` leaves out the cache of files, which the kernel gives up when memory is short, mapped or not: with
    it, every file that was read lately would look like memory that no model can have.
    """

    total: int  # the tightest limit that binds this process
    used: int  # of it; where a group above, or the machine, has less to give, that much more
    source: str  # `cgroup v2`, `cgroup v1`, `/proc/meminfo` or `psutil`
    pool: str = "machine"  # equal for processes that share this limit

    @property
    def free(self) -> int:
        """What nobody uses."""
        return max(0, self.total - self.used)


class _Names(NamedTuple):
    """Files of a control group, and fields of its memory.stat that are cache of files."""

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
# Above memory.high a group is not killed but slowed down until it hardly runs: a limit all the same.
_V2 = _Names("cgroup v2", ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"))


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Reads it now, in a millisecond or two. `root`: where `proc` and `sys` are."""
    machine = _machine(root)
    levels = [machine]
    for folder, names in _groups(root):
        # Kernels write `no limit` as a number beyond all memory in version 1: a limit above the machine's is none.
        if (level := _limited(folder, names)) and level.total < machine.total:
            levels.append(level)
    tightest = min(levels, key=lambda level: level.total)
    free = min(level.free for level in levels)
    return HostMemory(tightest.total, max(0, tightest.total - free), tightest.source, tightest.pool)


def _limited(folder: Path, names: _Names) -> HostMemory | None:
    """One control group; None where it has no limit, or does not tell."""
    limits = [limit for name in names.limits if (limit := _number(folder / name)) is not None]
    usage = _number(folder / names.usage)
    if not limits or usage is None:
        return None
    stat = _fields(folder / "memory.stat")
    used = max(0, usage - sum(stat.get(name, 0) for name in names.cache))
    return HostMemory(min(limits), used, names.source, _identity(folder))


def _identity(folder: Path) -> str:
    """Equal wherever the same group is seen from; containers call theirs all by the same path."""
    found = folder.stat()
    return f"cgroup {found.st_dev}:{found.st_ino}"


def _groups(root: Path) -> Iterator[tuple[Path, _Names]]:
    """The folders of the groups that this process is in, from its own upwards."""
    paths = _paths(root)
    for line in _lines(root / "proc/self/mountinfo"):  # proc_pid_mountinfo(5)
        before, _, after = line.partition(" - ")
        place, system = before.split(), after.split()
        if len(place) < 5 or len(system) < 3:
            continue
        if system[0] == "cgroup2":
            names, path = _V2, paths.get("")
        elif system[0] == "cgroup" and "memory" in system[2].split(","):
            names, path = _V1, paths.get("memory")
        else:
            continue
        mount = root / place[4].replace("\\040", " ").lstrip("/")
        own = mount / _below(path or "/", place[3])
        for folder in (own, *own.parents):
            if folder.is_dir():
                yield folder, names
            if folder == mount:
                break


def _below(path: str, mounted: str) -> PurePosixPath:
    """Where a group lies below a mount that shows the group `mounted` at its top; the top, if it is not below."""
    with contextlib.suppress(ValueError):
        relative = PurePosixPath(path).relative_to(mounted)
        if ".." not in relative.parts:
            return relative
    return PurePosixPath()


def _paths(root: Path) -> dict[str, str]:
    """Controller -> path of this process's group; version 2 names none."""
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
    """A small file's lines; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number that a file holds; None for `max`, and where there is none."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None


def _fields(path: Path) -> dict[str, int]:
    """`name number` or `name: number kB` on each line; what is no number is left out."""
    found = {}
    for line in _lines(path):
        name, _, rest = line.replace(":", " ", 1).partition(" ")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0])
    return found
