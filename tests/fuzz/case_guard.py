"""Runs cases one by one and finds those that raise undeclared errors, or take too much time or memory.

The time is processor time, not wall time: a busy machine changes no result. A case that never returns from native
code, or ends the process, stays in a file, which the parent process reads.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import resource
import signal
import struct
import traceback
from pathlib import Path
from types import FrameType

from tests.fuzz.fuzz_target import FuzzTarget

CPU_SECONDS = 5.0  # of one case; the slowest legitimate one takes a twentieth
MEMORY_BYTES = 512 * 1024 * 1024  # limit of one case
ROOM_BYTES = 2 * 1024 * 1024 * 1024  # address space, in addition to its size before the first case
HARD_FACTOR = 3  # the kernel ends the process after this multiple of the time limit
LONGEST = 1024 * 1024  # bytes of a case
_HIGHEST = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_HEAD = struct.Struct("<Q")


class _TooLong(BaseException):
    """The case has exceeded its time: no handler of ordinary errors catches this."""


class CaseGuard:
    """Limits and checks the cases of one process."""

    def __init__(
        self, now: Path | None = None, *, cpu_seconds: float = CPU_SECONDS, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        """`now`: a file that stores the running case."""
        self._cpu_seconds = cpu_seconds
        self._memory_bytes = memory_bytes
        self._map: mmap.mmap | None = None
        if now is not None:
            with now.open("w+b") as file:
                file.truncate(_HEAD.size + LONGEST)
                self._map = mmap.mmap(file.fileno(), _HEAD.size + LONGEST)
        signal.signal(signal.SIGPROF, _stop)

    def limit(self) -> None:
        """Sets the kernel's limits. Call it after all imports, and not for targets that use other processes."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def fault(self, target: FuzzTarget, case: bytes) -> str:
        """Returns the fault of a target on a case; empty: none."""
        self._note(case)
        before = _peak(anew=True)
        if not target.children:
            self._allow_cpu()
        signal.setitimer(signal.ITIMER_PROF, self._cpu_seconds)
        try:
            target.run(case)
        except target.declared:
            pass
        except _TooLong:
            return f"it takes longer than {self._cpu_seconds:g} seconds of the processor's time"
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            return traceback.format_exc(limit=-8)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        taken = _peak() - before
        return f"it takes {taken} bytes of memory" if taken > self._memory_bytes else ""

    def _note(self, case: bytes) -> None:
        if self._map is not None:
            self._map[: _HEAD.size + len(case)] = _HEAD.pack(len(case)) + case

    def _allow_cpu(self) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime + HARD_FACTOR * self._cpu_seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def case_in(now: Path) -> bytes:
    """Returns the case that was running when the process ended."""
    data = now.read_bytes()
    (length,) = _HEAD.unpack_from(data)
    return data[_HEAD.size : _HEAD.size + length]


def _stop(_: int, __: FrameType | None) -> None:
    raise _TooLong


def _peak(*, anew: bool = False) -> int:
    """Returns the process's peak memory in bytes: since its start, or since the last call with `anew`.

    Not from getrusage: there a process inherits its parent's peak.
    """
    if anew:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc_pid_clear_refs(5)
    found = _HIGHEST.search(Path("/proc/self/status").read_text(encoding="ascii", errors="replace"))
    return int(found[1]) * 1024 if found else 0
