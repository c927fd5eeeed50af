"""Tokens per minute of each key: checked before work begins, counted after it has ended, shared by all replicas.

Requests per minute are counted in the same way, by the authorizers of the gateways, before a request is admitted.

A key's usage drains continuously at its rate. While it is a minute's worth or more, no new work begins; running work
continues, so a key may owe more than a minute's worth and then waits longer. A process keeps its accounts in memory and
exchanges counts with the other replicas through a ledger, outside of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from services.errors import AllmError, RateLimited

log = logging.getLogger(__name__)

EXCHANGE_SECONDS = 0.25  # between two exchanges while keys are active
ACTIVE_SECONDS = 10.0  # a key is exchanged for so long after its last request
STALE_SECONDS = 2.0  # an older exchange is outdated: the key's next request waits for a fresh one
PATIENCE = 0.1  # longest wait for an exchange, in seconds
CLOSE_SECONDS = 2.0
SLACK = 0.001  # for fractions that drain
LONGEST_PAUSE = 10.0  # between two attempts while the ledger cannot be used


@dataclass(frozen=True, slots=True)
class Counted:
    """What a rate limits: tokens or requests."""

    noun: str
    words: str  # after the number, in errors
    least: int  # that a request needs: of tokens nobody knows it beforehand


TOKENS = Counted("tokens", "tokens per minute (prompts and answers)", 0)
REQUESTS = Counted("requests", "requests per minute", 1)


class Spent(NamedTuple):
    """A key's usage since the last exchange."""

    subject: str
    per_minute: int
    tokens: float


class TokenLedger(Protocol):
    """The usage counts that all replicas share."""

    async def exchange(self, spent: Sequence[Spent]) -> list[float]:
        """Adds usage; returns the current total of each of these keys over all replicas.

        May raise anything if that fails.
        """

    async def close(self) -> None:
        """Closes the ledger."""


Open = Callable[[], Awaitable[TokenLedger]]


@dataclass(slots=True)
class _Account:
    """The account of one key. Tokens are fractions because they drain."""

    per_minute: int
    at: float  # time of the last drain
    touched: float  # time of its last request
    used: float = 0.0
    unreported: float = 0.0  # part of `used` that the ledger does not know yet
    exchanged: float = -math.inf  # time of the last exchange

    def drain(self, now: float) -> None:
        self.used = max(0.0, self.used - (now - self.at) * self.per_minute / 60)
        self.unreported = min(self.unreported, self.used)  # tokens that drain before an exchange are not reported
        self.at = now


class TokenRates:
    """The counts of this process, of tokens or of requests; without a ledger it is the only one."""

    def __init__(
        self,
        open_ledger: Open | None = None,
        clock: Callable[[], float] = time.monotonic,
        counted: Counted = TOKENS,
    ) -> None:
        """`open_ledger` is called at the first use, and again after a failure."""
        self._counted = counted
        self._open = open_ledger
        self._ledger: TokenLedger | None = None
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._lock = asyncio.Lock()
        self._failed = False  # whether the last exchange failed
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._refreshing: set[asyncio.Task[None]] = set()

    async def admit(self, subject: str, per_minute: int) -> None:
        """Raises RateLimited, with the time to wait, for a key that has used up its rate."""
        account = self._account(subject, per_minute)
        if self._open and not self._failed and self._clock() - account.exchanged > STALE_SECONDS:
            await self._refresh(account)
        account.drain(self._clock())
        least = self._counted.least
        if account.used >= per_minute or account.used + least > per_minute + SLACK:
            raise _limited(subject, account, self._counted)

    def used(self, subject: str, per_minute: int) -> float:
        """Returns a key's usage that has not drained yet."""
        return self._account(subject, per_minute).used

    def charge(self, subject: str, per_minute: int, tokens: int) -> None:
        """Adds tokens or requests to a key's usage."""
        account = self._account(subject, per_minute)
        account.used += tokens
        account.unreported += tokens

    def forget(self, subject: str) -> None:
        """Drops a key that is gone."""
        self._accounts.pop(subject, None)

    async def close(self) -> None:
        """Exchanges the remaining counts and closes the ledger."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS), self._lock:
                if self._loop:
                    self._loop.cancel()
                await self._exchange()
        tasks = [*self._refreshing, *([self._loop] if self._loop else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._ledger:
            await self._ledger.close()
            self._ledger = None

    # --- inside

    def _account(self, subject: str, per_minute: int) -> _Account:
        now = self._clock()
        account = self._accounts.get(subject)
        if account is None:
            account = self._accounts[subject] = _Account(per_minute, now, now)
        account.drain(now)
        account.per_minute, account.touched = per_minute, now
        self._work.set()
        if self._open and self._loop is None:
            # An empty context: its log lines belong to no request.
            self._loop = asyncio.get_running_loop().create_task(self._keep(), context=contextvars.Context())
        return account

    async def _refresh(self, account: _Account) -> None:
        """Exchanges counts, but waits only briefly."""
        # A separate task: an exchange that is cancelled half way might be counted twice.
        task = asyncio.get_running_loop().create_task(self._exchange_stale(account), context=contextvars.Context())
        self._refreshing.add(task)
        task.add_done_callback(self._refreshing.discard)
        await asyncio.wait((task,), timeout=PATIENCE)

    async def _exchange_stale(self, account: _Account) -> None:
        async with self._lock:
            if self._clock() - account.exchanged > STALE_SECONDS:  # no other exchange has happened meanwhile
                await self._exchange()

    async def _keep(self) -> None:
        """Exchanges while keys are active, and sleeps otherwise."""
        pause = EXCHANGE_SECONDS
        while True:
            await self._work.wait()
            async with self._lock:
                await self._exchange()
            pause = min(pause * 2, LONGEST_PAUSE) if self._failed else EXCHANGE_SECONDS
            await asyncio.sleep(pause)
            if not self._active():
                self._work.clear()

    def _active(self) -> list[str]:
        """Returns the keys to exchange; forgets those that are inactive and owe nothing."""
        now, active = self._clock(), []
        for subject, account in list(self._accounts.items()):
            account.drain(now)
            if account.unreported or now - account.touched < ACTIVE_SECONDS:
                active.append(subject)
            elif not account.used:
                del self._accounts[subject]
        return active

    async def _exchange(self) -> None:
        """Exchanges once. Logs failures once; then this process continues with its own counts."""
        active = self._active()
        if not (self._open and active):
            return
        spent = [Spent(name, self._accounts[name].per_minute, self._accounts[name].unreported) for name in active]
        try:
            if self._ledger is None:
                self._ledger = await self._open()
            used = await self._ledger.exchange(spent)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await self._close_unusable(error)
            return
        if self._failed:
            log.info("%s per minute are shared between replicas again", self._counted.noun)
        self._failed = False
        for reported, total in zip(spent, used, strict=True):
            self._update(reported, total)

    def _update(self, reported: Spent, total: float) -> None:
        account = self._accounts.get(reported.subject)
        if account:
            account.at = account.exchanged = self._clock()
            account.unreported = max(0.0, account.unreported - reported.tokens)
            account.used = total + account.unreported

    async def _close_unusable(self, error: Exception) -> None:
        if not self._failed:
            # Redis errors may quote the data that was sent.
            details = str(error) if isinstance(error, OSError | AllmError | ImportError) else ""
            log.warning(
                "%s per minute cannot be shared between replicas now: each replica counts its own",
                self._counted.noun,
                extra={"reason": type(error).__name__, "details": details},
            )
        self._failed = True
        ledger, self._ledger = self._ledger, None
        if ledger:
            with contextlib.suppress(Exception):
                await ledger.close()


def _limited(subject: str, account: _Account, counted: Counted) -> RateLimited:
    per_second = account.per_minute / 60
    missing = account.used + counted.least - account.per_minute
    seconds = max(1, math.ceil((missing - SLACK) / per_second) if counted.least else int(missing / per_second) + 1)
    return RateLimited(
        f"The key {subject} has used up its {account.per_minute} {counted.words}: try again in {seconds} s.",
        retry_after=seconds,
        rates={
            f"x-ratelimit-limit-{counted.noun}": str(account.per_minute),
            f"x-ratelimit-remaining-{counted.noun}": "0",
            f"x-ratelimit-reset-{counted.noun}": f"{math.ceil(account.used / per_second)}s",
        },
    )
