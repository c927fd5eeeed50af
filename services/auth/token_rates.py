"""Tokens per minute of each key: looked at before work begins, counted once it has ended, shared by all replicas.

What a key has used drains away at its rate, all the time. While that is a minute's worth or more, nothing new begins;
what runs goes on, so a key may come to owe more than a minute's worth, and waits the longer for it. A process keeps all
it needs to know in memory; what it has counted and what others have is exchanged through a ledger beside the requests.
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

EXCHANGE_SECONDS = 0.25  # between two exchanges while anybody is busy
ACTIVE_SECONDS = 10.0  # so long after its last request a key takes part in them
STALE_SECONDS = 2.0  # older news of a key are not believed: its request waits for fresh ones
PATIENCE = 0.1  # seconds that it waits for them at the most
CLOSE_SECONDS = 2.0
LONGEST_PAUSE = 10.0  # between two attempts while the ledger cannot be used


class Spent(NamedTuple):
    """What a key has used since it was last told of."""

    subject: str
    per_minute: int
    tokens: float


class TokenLedger(Protocol):
    """What all replicas share."""

    async def exchange(self, spent: Sequence[Spent]) -> list[float]:
        """Adds what was used, and gives what each of these keys now has used, by all replicas.

        May raise anything where that is not possible.
        """

    async def close(self) -> None:
        """Lets go of it."""


Open = Callable[[], Awaitable[TokenLedger]]


@dataclass(slots=True)
class _Account:
    """One key. Tokens are fractions where some have drained away."""

    per_minute: int
    at: float  # when `used` was right
    touched: float  # when it last had a request
    used: float = 0.0
    untold: float = 0.0  # of these, what the ledger has not heard of
    heard: float = -math.inf  # when the ledger last told of it

    def drain(self, now: float) -> None:
        self.used = max(0.0, self.used - (now - self.at) * self.per_minute / 60)
        self.untold = min(self.untold, self.used)  # what has drained while nobody could be told is over
        self.at = now


class TokenRates:
    """Counts for this process; without a ledger it is the only one."""

    def __init__(self, open_ledger: Open | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`open_ledger` is called when it is first needed, and again after it could not be used."""
        self._open = open_ledger
        self._ledger: TokenLedger | None = None
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._turn = asyncio.Lock()
        self._away = False  # whether the ledger could not be used when it was last tried
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()

    async def admit(self, subject: str, per_minute: int) -> None:
        """Raises RateLimited for a key that has used up its rate; says when it has not any more."""
        account = self._account(subject, per_minute)
        if self._open and not self._away and self._clock() - account.heard > STALE_SECONDS:
            await self._refresh(account)
        account.drain(self._clock())
        if account.used >= per_minute:
            raise _limited(subject, account)

    def charge(self, subject: str, per_minute: int, tokens: int) -> None:
        """Counts tokens of a key."""
        account = self._account(subject, per_minute)
        account.used += tokens
        account.untold += tokens

    async def close(self) -> None:
        """Tells the ledger the rest, and lets go of it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS), self._turn:
                if self._loop:
                    self._loop.cancel()
                await self._tell()
        tasks = [*self._asking, *([self._loop] if self._loop else [])]
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
            # Of nobody's context: its log lines belong to no request.
            self._loop = asyncio.get_running_loop().create_task(self._keep(), context=contextvars.Context())
        return account

    async def _refresh(self, account: _Account) -> None:
        """Hears what others have used, if that does not take long."""
        # A task of its own: an exchange that is given up half way might be counted twice.
        asking = asyncio.get_running_loop().create_task(self._ask(account), context=contextvars.Context())
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        await asyncio.wait((asking,), timeout=PATIENCE)

    async def _ask(self, account: _Account) -> None:
        async with self._turn:
            if self._clock() - account.heard > STALE_SECONDS:  # nobody else has asked meanwhile
                await self._tell()

    async def _keep(self) -> None:
        """Exchanges for as long as anybody is busy, and rests otherwise."""
        pause = EXCHANGE_SECONDS
        while True:
            await self._work.wait()
            await self._exchange()
            pause = min(pause * 2, LONGEST_PAUSE) if self._away else EXCHANGE_SECONDS
            await asyncio.sleep(pause)
            if not self._busy():
                self._work.clear()

    async def _exchange(self) -> None:
        async with self._turn:
            await self._tell()

    def _busy(self) -> list[str]:
        """Keys with something to tell or to hear; forgets those that have been quiet, and owe nothing, for long."""
        now, busy = self._clock(), []
        for subject, account in list(self._accounts.items()):
            account.drain(now)
            if account.untold or now - account.touched < ACTIVE_SECONDS:
                busy.append(subject)
            elif not account.used:
                del self._accounts[subject]
        return busy

    async def _tell(self) -> None:
        """One exchange. Whatever goes wrong is logged once, and this process goes on by its own count."""
        busy = self._busy()
        if not (self._open and busy):
            return
        spent = [Spent(name, self._accounts[name].per_minute, self._accounts[name].untold) for name in busy]
        try:
            if self._ledger is None:
                self._ledger = await self._open()
            used = await self._ledger.exchange(spent)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await self._lose(error)
            return
        if self._away:
            log.info("tokens per minute are shared between replicas again")
        self._away = False
        for told, now_used in zip(spent, used, strict=True):
            self._hear(told, now_used)

    def _hear(self, told: Spent, used: float) -> None:
        account = self._accounts.get(told.subject)
        if account:
            account.at = account.heard = self._clock()
            account.untold = max(0.0, account.untold - told.tokens)
            account.used = used + account.untold

    async def _lose(self, error: Exception) -> None:
        if not self._away:
            # What Redis says might quote what it was sent.
            details = str(error) if isinstance(error, OSError | AllmError | ImportError) else ""
            log.warning(
                "tokens per minute cannot be shared between replicas now: each counts its own",
                extra={"reason": type(error).__name__, "details": details},
            )
        self._away = True
        ledger, self._ledger = self._ledger, None
        if ledger:
            with contextlib.suppress(Exception):
                await ledger.close()


def _limited(subject: str, account: _Account) -> RateLimited:
    per_second = account.per_minute / 60
    seconds = math.floor((account.used - account.per_minute) / per_second) + 1
    return RateLimited(
        f"The key {subject} has used up its {account.per_minute} tokens per minute, of prompts and answers: "
        f"ask again in {seconds} s.",
        retry_after=seconds,
        rates={
            "x-ratelimit-limit-tokens": str(account.per_minute),
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": f"{math.ceil(account.used / per_second)}s",
        },
    )
