"""The growth rate of a replica's counters."""

from __future__ import annotations

from collections import deque

from services.catalog.machine.counter_delta import CounterDelta
from services.telemetry import figures

SECONDS = 4.0  # window of a rate: two reports
SHORTEST = 0.5  # between two points: a closer one replaces the last


class Speed:
    """The growth rate of a replica's counters over the last few seconds. `uptime`: the replica's own seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, dict[figures.Counter, float]]] = deque()

    def add(self, uptime: float, gain: CounterDelta) -> None:
        """Adds the gain since the previous point."""
        before = self._points[-1][1] if self._points else {}
        totals = {name: before.get(name, 0.0) + value for name, value in gain.counters.items()}
        if len(self._points) > 1 and uptime - self._points[-2][0] < SHORTEST:
            self._points.pop()
        self._points.append((uptime, totals))
        while len(self._points) > 2 and self._points[1][0] <= uptime - SECONDS:
            self._points.popleft()

    def rate(self, counter: figures.Counter) -> float | None:
        """Returns the rate per second; None if the replica lacks that counter or has not reported twice."""
        if len(self._points) < 2 or counter not in self._points[-1][1]:
            return None
        (began, first), (ended, last) = self._points[0], self._points[-1]
        seconds = ended - began
        return (last[counter] - first.get(counter, 0.0)) / seconds if seconds >= SHORTEST else None
