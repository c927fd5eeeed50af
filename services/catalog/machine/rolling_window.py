"""Rates and percentiles of a replica's counters over one minute, from their increase between two reports.

As in Prometheus's histogram_quantile, values are assumed to be evenly distributed within a bucket, the first bucket
begins at 0, and a value above the last finite bound counts as that bound.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.telemetry import figures
from services.telemetry.figures import TIMES, Figures

Buckets = Mapping[float, int]  # upper bound in seconds, the last one infinite -> number of values in the bucket
WINDOW = 60.0  # seconds
BIN = 2.0  # seconds that share one bin, so memory does not grow with the number of replicas
RATE_SECONDS = 4.0  # window of a rate: two reports
POINT_SECONDS = 0.5  # between two points: a closer one replaces the last


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in seconds, and the number of measured values."""

    p50: float
    p95: float
    p99: float
    count: int


def percentiles(buckets: Buckets) -> Percentiles | None:
    """Returns the percentiles; None if nothing was measured."""
    count = sum(buckets.values())
    if not count:
        return None
    p50, p95, p99 = (percentile(buckets, share) for share in (0.5, 0.95, 0.99))
    return Percentiles(p50, p95, p99, count)


def percentile(buckets: Buckets, share: float) -> float:
    """Returns the value that `share` (0 to 1) of the values do not exceed; 0 without values or finite bounds."""
    wanted = share * sum(buckets.values())
    below, low = 0, 0.0
    for high, count in sorted(buckets.items()):
        if count and below + count >= wanted:
            return low if math.isinf(high) else low + (high - low) * (wanted - below) / count
        below += count
        low = low if math.isinf(high) else high
    return low


@dataclass(slots=True)
class CounterDelta:
    """Sums of the counters, and counts per histogram bucket, keyed by the bucket's upper bound in seconds."""

    counters: dict[figures.Counter, float] = field(default_factory=dict)
    times: dict[figures.Times, Counter[float]] = field(default_factory=dict)

    def add(self, other: CounterDelta) -> None:
        """Adds another delta to this one."""
        for name, value in other.counters.items():
            self.counters[name] = self.counters.get(name, 0.0) + value
        for times, buckets in other.times.items():
            self.times.setdefault(times, Counter()).update(buckets)


def counter_delta(before: Figures | None, now: Figures) -> CounterDelta:
    """Returns the increase from `before` to `now`; all of `now` where `before` is None.

    A counter that has decreased adds nothing: the series of a deleted model end.
    """
    old = before.counters if before else {}
    found = CounterDelta({name: max(0.0, value - old.get(name, 0.0)) for name, value in now.counters.items()})
    for name, times in now.times.items():
        known = before.times.get(name) if before else None
        counts = known.counts if known and known.bounds == times.bounds else (0,) * len(times.counts)
        ends = (*times.bounds, math.inf)
        more = {end: new - was for end, new, was in zip(ends, times.counts, counts, strict=True) if new > was}
        if more:
            found.times[name] = Counter(more)
    return found


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


class Speed:
    """The growth rate of a replica's counters over the last few seconds. `uptime`: the replica's own seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, dict[figures.Counter, float]]] = deque()

    def add(self, uptime: float, gain: CounterDelta) -> None:
        """Adds the gain since the previous point."""
        before = self._points[-1][1] if self._points else {}
        totals = {name: before.get(name, 0.0) + value for name, value in gain.counters.items()}
        if len(self._points) > 1 and uptime - self._points[-2][0] < POINT_SECONDS:
            self._points.pop()
        self._points.append((uptime, totals))
        while len(self._points) > 2 and self._points[1][0] <= uptime - RATE_SECONDS:
            self._points.popleft()

    def rate(self, counter: figures.Counter) -> float | None:
        """Returns the rate per second; None if the replica lacks that counter or has not reported twice."""
        if len(self._points) < 2 or counter not in self._points[-1][1]:
            return None
        (began, first), (ended, last) = self._points[0], self._points[-1]
        seconds = ended - began
        return (last[counter] - first.get(counter, 0.0)) / seconds if seconds >= POINT_SECONDS else None
