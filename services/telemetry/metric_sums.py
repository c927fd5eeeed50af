"""What this process's own metrics say, over all models: for those who tell it on, as Prometheus is not asked."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge, Histogram


def total(metric: Counter | Gauge) -> float | None:
    """The sum of all series; None where there is none yet. To `collect` them would take much longer."""
    series: list[Any] = list(metric._metrics.values())
    return sum(each._value.get() for each in series) if series else None


def buckets(metric: Histogram, **labels: str) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
    """Upper ends of the buckets without the last, and how many values each has, of all series with these labels.

    None where there is no such series yet.
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
