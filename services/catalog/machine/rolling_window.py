"""A rolling window of one minute: percentiles, and rates of counters that grow in large steps."""

from __future__ import annotations

from collections import deque

from services.catalog.machine.counter_delta import CounterDelta
from services.catalog.machine.percentiles import Percentiles, percentiles
from services.telemetry import figures
from services.telemetry.figures import TIMES

WINDOW = 60.0  # seconds
BIN = 2.0  # seconds that share one bin, so memory does not grow with the number of replicas


class RollingWindow:
    """The gains of a modality's replicas within the last minute. All times are seconds of one monotonic clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._bins: deque[tuple[float, CounterDelta]] = deque()

    def add(self, at: float, gain: CounterDelta) -> None:
        """Adds a gain at that time."""
        if not self._bins or at - self._bins[-1][0] >= BIN:
            self._bins.append((at, CounterDelta()))
        self._bins[-1][1].add(gain)
        self._forget(at)

    def rate(self, counter: figures.Counter, at: float) -> float:
        """Returns the counter's rate per second."""
        self._forget(at)
        whole = sum(gain.counters.get(counter, 0.0) for _, gain in self._bins)
        return whole / max(BIN, min(WINDOW, at - self._began))

    def percentiles(self, at: float) -> dict[figures.Times, Percentiles]:
        """Returns the percentiles of each kind of time that was measured."""
        self._forget(at)
        whole = CounterDelta()
        for _, gain in self._bins:
            whole.add(gain)
        return {name: found for name in TIMES if (found := percentiles(whole.times.get(name, {})))}

    def _forget(self, at: float) -> None:
        while self._bins and at - self._bins[0][0] > WINDOW:
            self._bins.popleft()
