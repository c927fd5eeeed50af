"""The noise of a measurement: CPU time stolen by the host, used by other processes, and used by the server.

The figures come from `/proc/stat` and the processes' own counters. Outside Linux they are zero.
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
    """The CPU use of the machine between two moments. Shares are in percent of all cores together."""

    steal_percent: float  # requested by this machine, given to another one by the host
    other_percent: float  # used by processes other than the client and the server (if that is known)
    client_cpu_s: float
    server_cpu_s: float  # 0 if the server's process is unknown


@dataclass(frozen=True, slots=True)
class _Moment:
    wall: float
    busy: float  # seconds of all cores since the machine's start, without steal
    steal: float
    client: float
    server: float


class NoiseMeter:
    """A meter of the noise from its creation to `read`."""

    def __init__(self, server_pid: int | None = None) -> None:
        self._server_pid = server_pid
        self._start = self._moment()

    def read(self) -> Noise:
        """Returns the noise since the creation of the meter."""
        start, end = self._start, self._moment()
        capacity = max(end.wall - start.wall, 1e-9) * (os.cpu_count() or 1)
        client, server = end.client - start.client, end.server - start.server
        other = end.busy - start.busy - client - server
        return Noise(
            steal_percent=100 * (end.steal - start.steal) / capacity,
            # The kernel counts in ticks of 10 ms, so a short window may be slightly negative.
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
    """Returns the CPU seconds that a process and all its descendants have used."""
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
