"""The rate limit of a key's requests, and the headers that report it."""

from __future__ import annotations

import math

import pytest

from services.authorizer.rate_limit import Bucket, RateState


def test_a_minutes_worth_may_come_at_once_and_then_at_the_rate() -> None:
    bucket = Bucket(60, now=100.0)
    assert [bucket.take(100.0) for _ in range(61)] == [0] * 60 + [1]
    assert bucket.take(100.9) == 1
    assert bucket.take(101.0) == 0
    assert bucket.take(101.0) == 1


def test_more_than_a_minutes_worth_is_never_saved() -> None:
    bucket = Bucket(3, now=0.0)
    assert [bucket.take(86_400.0) for _ in range(4)] == [0, 0, 0, 20]


@pytest.mark.parametrize("per_minute", [1, 7, 60, 600, 2**31 - 1])
def test_call_after_the_given_wait_is_admitted(per_minute: int) -> None:
    bucket, now = Bucket(per_minute, 0.0), 0.0
    bucket._content = 0.0  # empties the bucket
    seconds = bucket.take(now)
    assert 1 <= seconds <= math.ceil(60 / per_minute)
    assert bucket.take(now + seconds) == 0


def test_reported_value_is_the_fill_level() -> None:
    bucket = Bucket(6, now=0.0)
    assert bucket.state(0.0) == RateState(limit=6, remaining=6, reset_seconds=0)
    bucket.take(0.0)
    bucket.take(0.0)
    assert bucket.state(0.0) == RateState(limit=6, remaining=4, reset_seconds=20)
    assert bucket.state(5.0) == RateState(limit=6, remaining=4, reset_seconds=15)
    assert bucket.state(5.0).headers() == {
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "15s",
    }
