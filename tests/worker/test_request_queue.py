"""The rate of completed requests, which decides how long a new request would wait."""

from __future__ import annotations

import pytest

from services.worker import request_queue
from services.worker.request_queue import KEPT, CompletionRate


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces the monotonic clock with a value that the test sets."""
    now = [1000.0]
    monkeypatch.setattr(request_queue.time, "monotonic", lambda: now[0])
    return now


def ends(rate: CompletionRate, clock: list[float], times: int, seconds: float, requests: int = 5) -> None:
    """Ends `times` requests, one every `seconds`; new requests take their slots."""
    for _ in range(times):
        clock[0] += seconds
        rate.count(requests - 1, ended=True)
        rate.count(requests)


def test_no_rate_before_some_requests_have_ended(clock: list[float]) -> None:
    rate = CompletionRate(concurrency=2)
    rate.count(5)
    ends(rate, clock, 2, 1.0)
    assert rate.seconds_for(1) is None
    ends(rate, clock, 1, 1.0)
    assert rate.seconds_for(1) == pytest.approx(1.0)


def test_the_rate_is_the_current_one(clock: list[float]) -> None:
    rate = CompletionRate(concurrency=2)
    rate.count(5)
    ends(rate, clock, KEPT, 10.0)
    assert rate.seconds_for(3) == pytest.approx(30.0)
    ends(rate, clock, KEPT, 0.5)
    assert rate.seconds_for(3) == pytest.approx(1.5)


def test_running_requests_count_too(clock: list[float]) -> None:
    rate = CompletionRate(concurrency=2)
    rate.count(5)
    ends(rate, clock, 5, 1.0)
    clock[0] += 36.0
    assert rate.seconds_for(1) == pytest.approx(10.0)


def test_a_quiet_time_does_not_make_a_worker_slow(clock: list[float]) -> None:
    rate = CompletionRate(concurrency=2)
    rate.count(5)
    ends(rate, clock, 5, 1.0)
    rate.count(1)
    clock[0] += 3600.0
    ends(rate, clock, 50, 30.0, requests=1)  # a single client with slow requests
    rate.count(2)
    assert rate.seconds_for(4) == pytest.approx(4.0)
