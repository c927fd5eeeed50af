"""The rates of one replica's counters."""

from __future__ import annotations

import pytest

from services.catalog.machine.counter_delta import gained
from services.catalog.machine.speed import Speed
from tests.catalog.told_figures import figures


def tell(speed: Speed, uptime: float, tokens: float) -> None:
    speed.add(uptime, gained(None, figures(1, generated_tokens=tokens)))


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


def test_its_size_does_not_grow_with_reports() -> None:
    speed = Speed()
    for tenth in range(1000):
        tell(speed, tenth / 10, 1)
    assert len(speed._points) <= 16
    assert speed.rate("generated_tokens") == pytest.approx(10, rel=0.2)


def test_a_counter_that_begins_late_began_at_0() -> None:
    speed = Speed()
    speed.add(0, gained(None, figures(1)))
    tell(speed, 2, 8)
    assert speed.rate("generated_tokens") == pytest.approx(4)
