"""Counter increases of the last minute."""

from __future__ import annotations

import pytest

from services.catalog.machine.counter_delta import gained
from services.catalog.machine.rolling_window import RollingWindow
from tests.catalog.told_figures import figures


def one(**more: float):
    return gained(None, figures(1, request=(0, 1, 0), **more))


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
