"""The size of a step: bounded in time on any machine, and stable."""

from __future__ import annotations

import pytest

from services.worker.loop import STEP_SECONDS, Pace


@pytest.mark.parametrize(("rate", "limit"), [(1.0, 16), (10.0, 32), (100.0, 256), (409.0, 1024), (5000.0, 2048)])
def test_steps_come_to_take_their_time(rate: float, limit: int) -> None:
    """`rate`: the work that the machine does per second."""
    pace = Pace(16, 2048)
    for _ in range(9):
        pace.took(pace.limit, pace.limit / rate)
    assert pace.limit == limit
    assert limit in (16, 2048) or limit / rate <= STEP_SECONDS


def test_one_step_that_was_too_long_is_enough() -> None:
    pace = Pace(16, 2048, start=2048)
    pace.took(2048, 400.0)
    assert pace.limit == 16
    pace.took(16, 3.1)
    assert pace.limit == 16


def test_a_little_noise_changes_nothing() -> None:
    pace = Pace(16, 2048, start=512)
    for seconds in (4.0, 9.0, 3.0, 6.0):
        pace.took(512, seconds)
        assert pace.limit == 512


def test_small_steps_say_nothing_of_large_ones() -> None:
    pace = Pace(16, 2048, start=512)
    pace.took(3, 60.0)
    pace.took(100, 0.001)
    assert pace.limit == 512


def test_full_steps_of_parts_that_leave_room_count_too() -> None:
    pace = Pace(512, 2048)
    pace.took(2 * 242, 0.2)  # a third input of that length would not have fitted
    assert pace.limit == 2048


@pytest.mark.parametrize("most", [1, 8, 100])
def test_any_bounds_are_enforced(most: int) -> None:
    pace = Pace(16, most)
    pace.took(most, 0.001)
    assert pace.limit == most
    pace.took(most, 1000.0)
    assert pace.limit == min(16, most)
