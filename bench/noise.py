"""What else the machine did while something was measured: time stolen by its host, other processes, the server's share.

Read from `/proc/stat` and from the processes' own counters. On other systems than Linux the answer is zeros.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Noise:
    """The machine between two moments. The shares are of all its cores together, in percent."""

    steal_percent: float  # wanted by this machine, given to another one by the host
    other_percent: float  # used by processes that are neither the client nor, where it is known, the server
    client_cpu_s: float
    server_cpu_s: float  # 0 where the server's process is not known


@dataclass(frozen=True, slots=True)
class _Moment:
    wall: float
    busy: float  # seconds of all cores since the machine's start, without steal
    steal: float
    client: float
    server: float


class NoiseMeter:
    """Measures from its making to `read`."""

    def __init__(self, server_pid: int | None = None) -> None:
        self._server_pid = server_pid
        self._start = self._moment()

    def read(self) -> Noise:
        """What happened since the meter was made."""
        start, end = self._start, self._moment()
        capacity = max(end.wall - start.wall, 1e-9) * (os.cpu_count() or 1)
        client, server = end.client - start.client, end.server - start.server
        other = end.busy - start.busy - client - server
        return Noise(
            steal_percent=100 * (end.steal - start.steal) / capacity,
            # The kernel counts in ticks of 10 ms, so a short window may come out slightly below nothing.
            other_percent=max(0.0, 100 * other / capacity) if end.busy else 0.0,
            client_cpu_s=client,
            server_cpu_s=server,
        )

    def _moment(self) -> _Moment:
        busy, steal = _machine_seconds()
        return _Moment(time.perf_counter(), busy, steal, time.process_time(), process_seconds(self._server_pid))


def _machine_seconds() -> tuple[float, float]:
    if not _STAT.exists():
        return 0.0, 0.0
    fields = [int(field) for field in _STAT.read_text("ascii").split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / ticks, steal / ticks


def process_seconds(pid: int | None) -> float:
    """CPU seconds that a process and all its descendants have used."""
    if pid is None:
        return 0.0
    total = 0.0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            times = process.cpu_times()
            total += times.user + times.system
    except psutil.NoSuchProcess:
        pass
    return total
