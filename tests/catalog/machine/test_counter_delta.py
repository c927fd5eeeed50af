"""Counter differences between two reports."""

from __future__ import annotations

import math

from services.catalog.machine.counter_delta import CounterDelta, gained
from tests.catalog.told_figures import figures


def test_only_the_difference_counts() -> None:
    before = figures(10, generated_tokens=5, request=(1, 2, 3))
    now = figures(12, generated_tokens=9, images=2, request=(1, 4, 4))
    found = gained(before, now)
    assert found.counters == {"generated_tokens": 4.0, "images": 2.0}
    assert found.times == {"request": {1.0: 2, math.inf: 1}}


def test_without_a_report_before_everything_counts() -> None:
    found = gained(None, figures(1, generated_tokens=3, request=(1, 0, 0)))
    assert (found.counters, found.times) == ({"generated_tokens": 3.0}, {"request": {0.1: 1}})


def test_what_became_less_counts_as_nothing() -> None:
    """A counter falls when a model is deleted, because its series goes with it."""
    found = gained(figures(1, generated_tokens=9, request=(5, 5, 5)), figures(2, generated_tokens=3, request=(1, 6, 5)))
    assert (found.counters, found.times) == ({"generated_tokens": 0.0}, {"request": {1.0: 1}})


def test_sums() -> None:
    whole = CounterDelta()
    for _ in range(3):
        whole.add(gained(None, figures(1, images=2, request=(1, 0, 2))))
    assert (whole.counters, whole.times) == ({"images": 6.0}, {"request": {0.1: 3, math.inf: 6}})
