"""Adapts how long waiting threads of GNU's OpenMP spin to how busy the machine is.

Threads that share the work of a step wait for each other hundreds of times. A thread that sleeps there needs 0.1 ms to
wake up on a virtual machine; a thread that spins takes the core from the one that it waits for, if other processes want
the cores too. A step of a model of 135M parameters on two cores, in milliseconds, by the number of spins:

| spins | quiet machine | beside a busy process |
|------:|--------------:|----------------------:|
|   100 |            32 |                    32 |
| 1,000 |            16 |                    36 |
| 3,000 |            14 |                    54 |

So workers start with 3,000 (`worker_environ`), and spin less while the loop's thread often waits for a core. libgomp
reads their number only once, but spins 100 times at most while it has more threads than the process has cores: a team
of sleeping threads makes it so (https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

LOOK_SECONDS = 0.25
BUSY = 0.2  # share of the time in which the thread waited for a core: from here on, others want it too
QUIET = 0.1  # below this, they no longer do

_libc = ctypes.CDLL(None)


class _Team:
    """Sleeping threads of one copy of libgomp, as long as the team exists."""

    def __init__(self, library: str) -> None:
        self._semaphore = ctypes.create_string_buffer(64)  # sem_t
        _libc.sem_init(self._semaphore, 0, 0)
        self._size = len(os.sched_getaffinity(0)) + 1
        # libgomp's team ends with the thread that began it, so this is a new thread each time.
        threading.Thread(target=self._sleep, args=(ctypes.CDLL(library),), daemon=True).start()

    def _sleep(self, openmp: ctypes.CDLL) -> None:
        openmp.GOMP_parallel(_libc.sem_wait, self._semaphore, self._size, 0)

    def end(self) -> None:
        """Wakes all threads, which then end."""
        for _ in range(self._size):
            _libc.sem_post(self._semaphore)


class Spinning:
    """Watches the thread that uses it, the first of those that compute."""

    def __init__(self) -> None:
        self._teams: list[_Team] = []
        self._seen = time.monotonic(), _waited()

    def look(self) -> None:
        """Measures, at most every LOOK_SECONDS, how long the thread waited for a core since the last time."""
        before, waited_before = self._seen
        seconds = time.monotonic() - before
        if seconds < LOOK_SECONDS:
            return
        waited = _waited()
        self._seen = before + seconds, waited
        share = (waited - waited_before) / seconds
        if share > BUSY and not self._teams:
            self._teams = [_Team(library) for library in _openmp_libraries()]
        elif share < QUIET:
            for team in self._teams:
                team.end()
            self._teams = []


def _waited() -> float:
    """Returns the seconds that this thread was ready to run, but had no core; 0 where the system does not count them.

    https://docs.kernel.org/scheduler/sched-stats.html
    """
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    except OSError:
        return 0.0


def _openmp_libraries() -> set[str]:
    """Returns the paths of all copies of libgomp in this process: packages bring their own."""
    lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}
