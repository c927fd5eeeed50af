"""Percentiles from histograms, interpolated as Prometheus does."""

from __future__ import annotations

import math

import pytest

from services.catalog.machine.percentiles import Percentiles, percentile, percentiles


def test_where_nothing_was_measured_there_are_none() -> None:
    assert percentiles({}) is None
    assert percentiles({0.1: 0, math.inf: 0}) is None


def test_values_are_taken_to_lie_evenly_in_their_bucket() -> None:
    assert percentile({1.0: 10, math.inf: 0}, 0.5) == pytest.approx(0.5)
    assert percentile({1.0: 50, 2.0: 50, math.inf: 0}, 0.5) == pytest.approx(1.0)
    assert percentile({1.0: 50, 2.0: 50, math.inf: 0}, 0.75) == pytest.approx(1.5)
    assert percentile({1.0: 0, 2.0: 0, 4.0: 8}, 0.25) == pytest.approx(2.5), "empty buckets are passed over"


def test_above_the_last_bound_nothing_is_known_but_the_bound() -> None:
    assert percentile({1.0: 1, math.inf: 99}, 0.5) == 1.0
    assert percentile({math.inf: 5}, 0.5) == 0.0


def test_the_order_of_buckets_does_not_matter() -> None:
    assert percentile({math.inf: 0, 2.0: 10, 1.0: 10}, 0.75) == pytest.approx(1.5)


def test_all_of_them() -> None:
    found = percentiles({1.0: 90, 2.0: 9, 10.0: 1})
    assert isinstance(found, Percentiles)
    assert (found.p50, found.p95, found.p99) == pytest.approx((50 / 90, 1 + 5 / 9, 2.0))
    assert found.count == 100


def test_as_prometheus_computes_it() -> None:
    """histogram_quantile of cumulative buckets 0.1: 4, 0.5: 10, 1: 16, +Inf: 20, by hand from its documentation."""
    buckets = {0.1: 4, 0.5: 6, 1.0: 6, math.inf: 4}
    assert percentile(buckets, 0.2) == pytest.approx(0.1)
    assert percentile(buckets, 0.5) == pytest.approx(0.5)
    assert percentile(buckets, 0.65) == pytest.approx(0.5 + 0.5 * 3 / 6)
    assert percentile(buckets, 0.95) == 1.0
