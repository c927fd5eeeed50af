"""The increase of a replica's counters between two of its reports."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from services.telemetry import figures
from services.telemetry.figures import Figures


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


def gained(before: Figures | None, now: Figures) -> CounterDelta:
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
