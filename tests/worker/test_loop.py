"""The size of a step, bounded in time on any machine, and stable; and the turns of clients and requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from services.worker.loop import STEP_SECONDS, Pace, Turns


@pytest.mark.parametrize(("rate", "limit"), [(1.0, 16), (10.0, 32), (100.0, 256), (409.0, 1024), (5000.0, 2048)])
def test_the_pace_approaches_the_target_time(rate: float, limit: int) -> None:
    """`rate`: the work that the machine does per second."""
    pace = Pace(16, 2048)
    for _ in range(9):
        pace.took(pace.limit, pace.limit / rate)
    assert pace.limit == limit
    assert limit in (16, 2048) or limit / rate <= STEP_SECONDS


def test_one_long_step_lowers_the_limit() -> None:
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


@dataclass(frozen=True)
class One:
    request: int
    client: str


def test_no_waiting_request() -> None:
    assert Turns().next([]) is None


def test_a_client_with_many_requests_gets_no_more_than_one_with_few() -> None:
    waiting = [One(number, "many") for number in range(10)] + [One(10, "few"), One(11, "one")]
    turns = Turns()
    had = [turns.next(waiting) for _ in range(60)]
    assert Counter(one.client for one in had if one) == {"many": 20, "few": 20, "one": 20}
    assert Counter(one.request for one in had if one and one.client == "many") == dict.fromkeys(range(10), 2)


def test_requests_without_a_turn_are_next_oldest_first() -> None:
    turns = Turns()
    old = [One(1, "a"), One(2, "b")]
    assert [turns.next(old), turns.next(old), turns.next(old)] == [One(1, "a"), One(2, "b"), One(1, "a")]
    assert turns.next([*old, One(4, "d"), One(3, "c")]) == One(3, "c")


def test_ended_clients_leave_no_state() -> None:
    turns = Turns()
    first, second, other = One(1, "a"), One(2, "a"), One(3, "b")
    turns.next([first])
    turns.next([second])
    turns.forget(first, [second])
    assert turns.next([second, other]) == other
    turns.forget(other, [second])
    turns.forget(second, [])
    assert not turns._clients
    assert not turns._requests
