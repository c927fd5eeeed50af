"""Sums over all series of a metric."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.telemetry.metric_sums import buckets, total


def test_totals() -> None:
    registry = CollectorRegistry()
    counter = Counter("c", "A counter.", ("model",), registry=registry)
    gauge = Gauge("g", "A gauge.", ("model",), registry=registry)
    assert total(counter) is None, "there is nothing yet, which is not 0"
    counter.labels("a")
    assert total(counter) == 0
    counter.labels("a").inc(2)
    counter.labels("b").inc(0.5)
    gauge.labels("a").set(3)
    gauge.labels("b").set(4)
    assert (total(counter), total(gauge)) == (pytest.approx(2.5), 7)


def test_buckets_are_not_cumulative_and_the_last_has_no_end() -> None:
    times = Histogram("h", "Times.", ("model", "error"), buckets=(0.1, 1), registry=CollectorRegistry())
    assert buckets(times) is None
    for model, error, value in (("a", "", 0.05), ("a", "", 0.5), ("b", "", 0.5), ("b", "", 9), ("a", "TIMEOUT", 9)):
        times.labels(model, error).observe(value)
    assert buckets(times) == ((0.1, 1.0), (1, 2, 2))
    assert buckets(times, error="") == ((0.1, 1.0), (1, 2, 1))
    assert buckets(times, error="", model="a") == ((0.1, 1.0), (1, 1, 0))
    assert buckets(times, error="INTERNAL") is None
