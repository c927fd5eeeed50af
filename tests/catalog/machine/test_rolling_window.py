"""Counter increases of the last minute."""

from __future__ import annotations

import math

import pytest

from services.catalog.machine.rolling_window import (
    CounterDelta,
    Percentiles,
    RollingWindow,
    Speed,
    counter_delta,
    percentile,
    percentiles,
)
from tests.catalog.reported_figures import figures


def one(**more: float):
    return counter_delta(None, figures(1, request=(0, 1, 0), **more))


def test_rates_are_about_the_minute_or_as_much_of_it_as_there_was() -> None:
    minute = RollingWindow(1000.0)
    minute.add(1010.0, one(images=1))
    assert minute.rate("images", 1010.0) == pytest.approx(1 / 10)
    assert minute.rate("images", 1040.0) == pytest.approx(1 / 40)
    assert minute.rate("images", 1070.0) == pytest.approx(1 / 60)
    assert minute.rate("images", 1070.1) == 0.0
    assert minute.rate("audio_seconds", 1070.1) == 0.0


def test_a_first_picture_at_once_makes_no_wild_rate() -> None:
    minute = RollingWindow(1000.0)
    minute.add(1000.0, one(images=1))
    assert minute.rate("images", 1000.0) <= 0.5


def test_percentiles_forget_what_is_older() -> None:
    minute = RollingWindow(0.0)
    assert minute.percentiles(0.0) == {}
    minute.add(10.0, one())
    minute.add(50.0, one())
    assert minute.percentiles(70.0)["request"].count == 2
    assert minute.percentiles(71.0)["request"].count == 1
    assert minute.percentiles(120.0) == {}


def test_its_size_does_not_grow_with_reports() -> None:
    minute = RollingWindow(0.0)
    for hundredth in range(20_000):
        minute.add(hundredth / 100, one(images=1))
    assert len(minute._bins) <= 32
    assert minute.rate("images", 200.0) == pytest.approx(100, rel=0.05)


def test_only_the_difference_counts() -> None:
    before = figures(10, generated_tokens=5, request=(1, 2, 3))
    now = figures(12, generated_tokens=9, images=2, request=(1, 4, 4))
    found = counter_delta(before, now)
    assert found.counters == {"generated_tokens": 4.0, "images": 2.0}
    assert found.times == {"request": {1.0: 2, math.inf: 1}}


def test_without_a_report_before_everything_counts() -> None:
    found = counter_delta(None, figures(1, generated_tokens=3, request=(1, 0, 0)))
    assert (found.counters, found.times) == ({"generated_tokens": 3.0}, {"request": {0.1: 1}})


def test_decreased_counter_counts_as_zero() -> None:
    """A counter falls when a model is deleted, because its series goes with it."""
    found = counter_delta(
        figures(1, generated_tokens=9, request=(5, 5, 5)), figures(2, generated_tokens=3, request=(1, 6, 5))
    )
    assert (found.counters, found.times) == ({"generated_tokens": 0.0}, {"request": {1.0: 1}})


def test_sums() -> None:
    whole = CounterDelta()
    for _ in range(3):
        whole.add(counter_delta(None, figures(1, images=2, request=(1, 0, 2))))
    assert (whole.counters, whole.times) == ({"images": 6.0}, {"request": {0.1: 3, math.inf: 6}})


def test_no_percentiles_without_measurements() -> None:
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


def tell(speed: Speed, uptime: float, tokens: float) -> None:
    speed.add(uptime, counter_delta(None, figures(1, generated_tokens=tokens)))


def test_it_takes_two_reports() -> None:
    speed = Speed()
    assert speed.rate("generated_tokens") is None
    tell(speed, 10, 0)
    assert speed.rate("generated_tokens") is None
    tell(speed, 12, 30)
    assert speed.rate("generated_tokens") == pytest.approx(15)
    assert speed.rate("images") is None, "it counts none"


def test_it_is_about_the_last_seconds() -> None:
    speed = Speed()
    for uptime, tokens in ((0, 0), (2, 100), (4, 100), (6, 0), (8, 0)):
        tell(speed, uptime, tokens)
    assert speed.rate("generated_tokens") == 0.0
    tell(speed, 10, 60)
    assert speed.rate("generated_tokens") == pytest.approx(60 / 4)


def test_reports_that_come_close_together_are_no_measure_by_themselves() -> None:
    speed = Speed()
    tell(speed, 0, 0)
    tell(speed, 0.1, 50)
    assert speed.rate("generated_tokens") is None
    tell(speed, 0.2, 50)
    tell(speed, 2.0, 0)
    assert speed.rate("generated_tokens") == pytest.approx(100 / 2), "and lose nothing"


def test_the_size_of_speeds_does_not_grow_with_reports() -> None:
    speed = Speed()
    for tenth in range(1000):
        tell(speed, tenth / 10, 1)
    assert len(speed._points) <= 16
    assert speed.rate("generated_tokens") == pytest.approx(10, rel=0.2)


def test_a_counter_that_begins_late_began_at_0() -> None:
    speed = Speed()
    speed.add(0, counter_delta(None, figures(1)))
    tell(speed, 2, 8)
    assert speed.rate("generated_tokens") == pytest.approx(4)
