"""Percentiles out of a histogram.

As Prometheus's histogram_quantile: within a bucket the values are taken to lie evenly, the first bucket begins at 0,
and of what lies above the last bound nothing is known but that bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Buckets = Mapping[float, int]  # upper end in seconds, the last one infinite -> how many times lie in the bucket


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, and of how many times."""

    p50: float
    p95: float
    p99: float
    count: int


def percentiles(buckets: Buckets) -> Percentiles | None:
    """None where nothing was measured."""
    count = sum(buckets.values())
    if not count:
        return None
    p50, p95, p99 = (percentile(buckets, share) for share in (0.5, 0.95, 0.99))
    return Percentiles(p50, p95, p99, count)


def percentile(buckets: Buckets, share: float) -> float:
    """What `share` (0 to 1) of the times are at most; 0 where there are none, or no bound."""
    wanted = share * sum(buckets.values())
    below, low = 0, 0.0
    for high, count in sorted(buckets.items()):
        if count and below + count >= wanted:
            return low if math.isinf(high) else low + (high - low) * (wanted - below) / count
        below += count
        low = low if math.isinf(high) else high
    return low
