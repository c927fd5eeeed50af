"""Tokens per minute: refusals, retry times, and counts that other replicas or no replica hold."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from services.auth.caller import Caller
from services.auth.identity import INFERENCE, Identity
from services.auth.token_rates import Spent, TokenRates
from services.errors import RateLimited

RATE = 600  # per minute: 10 per second
PATIENCE = 60.0


class Clock:
    """A clock that only tests advance, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Ledger:
    """A shared ledger without a drain; it can fail."""

    def __init__(self) -> None:
        self.used: dict[str, float] = {}
        self.broken = False
        self.slow: asyncio.Event | None = None
        self.opened = self.closed = self.exchanges = 0

    async def open(self) -> Ledger:
        self.opened += 1
        return self

    async def exchange(self, spent: Sequence[Spent]) -> list[float]:
        self.exchanges += 1
        if self.slow:
            await self.slow.wait()
        if self.broken:
            raise OSError("away")
        for each in spent:
            self.used[each.subject] = self.used.get(each.subject, 0) + each.tokens
        return [self.used[each.subject] for each in spent]

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
async def rates(clock: Clock, ledger: Ledger) -> AsyncIterator[TokenRates]:
    made = TokenRates(ledger.open, clock)
    yield made
    ledger.broken, ledger.slow = False, None
    await made.close()


async def refused(rates: TokenRates, subject: str = "ann") -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await rates.admit(subject, RATE)
    return caught.value


async def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_alone_it_drains_at_the_rate(clock: Clock) -> None:
    rates = TokenRates(None, clock)
    await rates.admit("ann", RATE)
    rates.charge("ann", RATE, 599)
    await rates.admit("ann", RATE)
    rates.charge("ann", RATE, 101)
    error = await refused(rates)
    assert (error.code, error.http_status, error.openai_code) == ("OVERLOADED", 429, "rate_limit_exceeded")
    assert error.message == (
        "The key ann has used up its 600 tokens per minute (prompts and answers): try again in 11 s."
    )
    assert error.headers() == {
        "retry-after": "11",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "70s",
    }
    await rates.admit("bob", RATE)
    clock.now += 9.9
    await refused(rates)
    clock.now += 1.1  # 11 seconds in total, the announced retry time
    await rates.admit("ann", RATE)
    await rates.close()


@pytest.mark.parametrize("used", [600, 601, 609, 610, 1234, 60_000])
async def test_retry_after_the_given_time_succeeds(clock: Clock, used: int) -> None:
    rates = TokenRates(None, clock)
    rates.charge("ann", RATE, used)
    clock.now += int((await refused(rates)).headers()["retry-after"]) - 1
    await refused(rates)
    clock.now += 1
    await rates.admit("ann", RATE)


async def test_a_changed_rate_holds_at_once(clock: Clock) -> None:
    rates = TokenRates(None, clock)
    rates.charge("ann", 60, 100)
    await rates.admit("ann", RATE)
    with pytest.raises(RateLimited):
        await rates.admit("ann", 60)


async def test_replicas_count_together(clock: Clock, ledger: Ledger) -> None:
    one, other = TokenRates(ledger.open, clock), TokenRates(ledger.open, clock)
    await one.admit("ann", RATE)
    await other.admit("ann", RATE)
    one.charge("ann", RATE, 400)
    other.charge("ann", RATE, 300)
    await until(lambda: ledger.used["ann"] == 700)
    for each in (one, other):
        clock.now += 3  # older than the maximum age of the ledger's figures
        await refused(each)
    await one.close()
    await other.close()
    assert ledger.closed == 2


async def test_a_new_replica_knows_the_usage_before_its_first_request(ledger: Ledger, rates: TokenRates) -> None:
    ledger.used["ann"] = 5000
    await refused(rates)
    await rates.admit("bob", RATE)


async def test_known_entries_are_not_requested_again(ledger: Ledger, rates: TokenRates) -> None:
    await rates.admit("ann", RATE)
    before = ledger.exchanges
    ledger.slow = asyncio.Event()  # every exchange would block
    for _ in range(RATE):
        await rates.admit("ann", RATE)
        rates.charge("ann", RATE, 1)
    await refused(rates)
    assert ledger.exchanges <= before + 1
    ledger.slow.set()


async def test_many_at_once_ask_once(clock: Clock, ledger: Ledger) -> None:
    rates = TokenRates(ledger.open, clock)
    await asyncio.gather(*(rates.admit("ann", RATE) for _ in range(100)))
    assert ledger.exchanges <= 2  # the second one is the regular exchange
    await rates.close()


async def test_slow_ledger_delays_no_call_for_long(ledger: Ledger, rates: TokenRates) -> None:
    ledger.slow = asyncio.Event()
    async with asyncio.timeout(PATIENCE):
        await rates.admit("ann", RATE)
    rates.charge("ann", RATE, 700)
    ledger.slow.set()
    await until(lambda: ledger.used.get("ann") == 700)  # counted once, although two requests asked


async def test_without_its_ledger_each_counts_its_own(
    clock: Clock, ledger: Ledger, rates: TokenRates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ledger.broken = True
    await rates.admit("ann", RATE)
    rates.charge("ann", RATE, 700)
    await refused(rates)
    await until(lambda: ledger.opened >= 3)
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [(one.message, one.reason, one.details) for one in warnings] == [
        ("tokens per minute cannot be shared between replicas now: each replica counts its own", "OSError", "away")
    ]
    clock.now += 5  # 50 tokens have drained and no longer count
    ledger.broken = False
    await until(lambda: "ann" in ledger.used)
    assert ledger.used["ann"] == pytest.approx(650)
    await until(lambda: "shared between replicas again" in caplog.text)


async def test_unopenable_file_is_refused_too(clock: Clock) -> None:
    async def missing() -> Ledger:
        raise ModuleNotFoundError("redis")

    rates = TokenRates(missing, clock)
    await rates.admit("ann", RATE)
    rates.charge("ann", RATE, 700)
    await refused(rates)
    await rates.close()


async def test_the_remaining_usage_is_sent_at_the_end(clock: Clock, ledger: Ledger) -> None:
    rates = TokenRates(ledger.open, clock)
    await rates.admit("ann", RATE)
    rates.charge("ann", RATE, 70)
    await rates.close()
    assert ledger.used == {"ann": 70}


async def test_idle_account_without_debt_is_forgotten(clock: Clock, ledger: Ledger) -> None:
    rates = TokenRates(ledger.open, clock)
    await rates.admit("ann", RATE)
    rates.charge("bob", RATE, 6000)
    await until(lambda: "bob" in ledger.used)
    clock.now += 60
    await until(lambda: set(rates._accounts) == {"bob"})
    ledger.used.clear()
    clock.now += 3600
    await rates.admit("carol", RATE)
    await until(lambda: set(rates._accounts) == {"carol"})
    await rates.close()


async def test_only_callers_with_a_rate_are_counted(clock: Clock) -> None:
    rates = TokenRates(None, clock)
    free = Caller(Identity("free", frozenset({INFERENCE})), rates)
    bound = Caller(Identity("bound", frozenset({INFERENCE}), (), RATE), rates)
    for caller in (free, bound):
        await caller.admit()
        caller.spend(10_000)
    await free.admit()
    with pytest.raises(RateLimited):
        await bound.admit()
    uncounted = Caller(bound.identity, None)
    uncounted.spend(10_000)
    await uncounted.admit()


async def test_cost_of_a_request(rates: TokenRates) -> None:
    """A recent ledger exchange saves the request both a task and a wait; the test measures no time."""
    await rates.admit("ann", RATE)
    tasks = len(asyncio.all_tasks())
    admitting = rates.admit("ann", RATE)
    with pytest.raises(StopIteration):
        admitting.send(None)  # does not suspend
    assert len(asyncio.all_tasks()) == tasks
