"""Sums of this process's own metrics over all models, for reports that cannot query Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge, Histogram


def total(metric: Counter | Gauge) -> float | None:
    """Returns the sum of all series; None if there is none yet. `collect` would take much longer."""
    series: list[Any] = list(metric._metrics.values())
    return sum(each._value.get() for each in series) if series else None


def buckets(metric: Histogram, **labels: str) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
    """Returns the buckets' upper bounds without the last, and their counts, over all series with these labels.

    None if no such series exists yet.
    """
    places = [(metric._labelnames.index(name), value) for name, value in labels.items()]
    series: list[Any] = [
        child
        for values, child in list(metric._metrics.items())
        if all(values[place] == value for place, value in places)
    ]
    if not series:
        return None
    counts = zip(*([bucket.get() for bucket in child._buckets] for child in series), strict=True)
    return tuple(metric._upper_bounds[:-1]), tuple(int(sum(of_all)) for of_all in counts)
