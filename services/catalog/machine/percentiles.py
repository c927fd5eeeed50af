"""Percentiles of a histogram.

As in Prometheus's histogram_quantile, values are assumed to be evenly distributed within a bucket, the first bucket
begins at 0, and a value above the last finite bound counts as that bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Buckets = Mapping[float, int]  # upper bound in seconds, the last one infinite -> number of values in the bucket


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
