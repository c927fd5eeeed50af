"""The rate limit of a key's requests: in one process, the headers that report it, and over two authorizers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.auth.token_rates import REQUESTS, TokenRates
from services.authorizer.__main__ import request_rates
from services.authorizer.gatekeeper import CheckedRequest, Gatekeeper
from services.authorizer.rate_limit import RateState
from services.errors import RateLimited
from tests import identities
from tests.authorizer.known_keys import known, shown_key, table
from tests.redis_server import RedisServer

KEY = "key_ann"


class Ticks:
    """A clock that only tests advance, in seconds."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def waits(rates: TokenRates, per_minute: int) -> int:
    """Takes a request; returns 0 if it is admitted, otherwise the seconds to wait."""
    try:
        await rates.admit(KEY, per_minute)
    except RateLimited as refused:
        return int(refused.headers()["retry-after"])
    rates.charge(KEY, per_minute, 1)
    return 0


async def test_a_minutes_worth_may_come_at_once_and_then_at_the_rate() -> None:
    rates = TokenRates(clock=(ticks := Ticks()), counted=REQUESTS)
    assert [await waits(rates, 60) for _ in range(61)] == [0] * 60 + [1]
    ticks.now += 0.9
    assert await waits(rates, 60) == 1
    ticks.now += 0.1
    assert [await waits(rates, 60) for _ in range(2)] == [0, 1]


async def test_more_than_a_minutes_worth_is_never_saved() -> None:
    rates = TokenRates(clock=(ticks := Ticks()), counted=REQUESTS)
    await rates.admit(KEY, 3)
    ticks.now += 86_400.0
    assert [await waits(rates, 3) for _ in range(4)] == [0, 0, 0, 20]


@pytest.mark.parametrize("per_minute", [1, 7, 60, 600, 2**31 - 1])
async def test_call_after_the_given_wait_is_admitted(per_minute: int) -> None:
    rates = TokenRates(clock=(ticks := Ticks()), counted=REQUESTS)
    rates.charge(KEY, per_minute, per_minute)
    seconds = await waits(rates, per_minute)
    assert 1 <= seconds <= math.ceil(60 / per_minute)
    ticks.now += seconds
    assert await waits(rates, per_minute) == 0


def test_reported_value_is_the_fill_level() -> None:
    assert RateState.of(6, used=0.0) == RateState(limit=6, remaining=6, reset_seconds=0)
    assert RateState.of(6, used=2.0) == RateState(limit=6, remaining=4, reset_seconds=20)
    assert RateState.of(6, used=1.5) == RateState(limit=6, remaining=4, reset_seconds=15)
    assert RateState.of(6, used=1.5).headers() == {
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "15s",
    }


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path)
    yield running
    running.kill()


@pytest.mark.slow
async def test_two_authorizers_on_one_redis_count_together(redis: RedisServer) -> None:
    """What one has admitted counts for the other; without Redis each continues with its own count."""
    one, other = (request_rates(redis.url) for _ in range(2))
    keys = table(known("ann", requests_per_minute=3))
    first, second = (Gatekeeper(keys, identities.KEYS["authorizer"], rates) for rates in (one, other))
    try:
        for _ in range(3):
            await ask(first, "ann")
        async with asyncio.timeout(60):
            while one._accounts[KEY].unreported:  # noqa: ASYNC110 - it shares its counts beside requests
                await asyncio.sleep(0.02)
        with pytest.raises(RateLimited, match="3 requests per minute"):
            await ask(second, "ann")
        redis.kill()
        async with asyncio.timeout(60):
            while not other._failed:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises(RateLimited):
            await ask(second, "ann")
    finally:
        await asyncio.gather(one.close(), other.close())


async def ask(gatekeeper: Gatekeeper, name: str) -> None:
    await gatekeeper.check(CheckedRequest("POST", "/v1/chat/completions", f"Bearer {shown_key(name)}"))
