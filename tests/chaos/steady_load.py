"""Load through the gateway: callers who send the next request as soon as they have an answer, until stopped."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from tests.chaos.gateway_caller import GatewayCaller
from tests.chaos.outcome import Attempt, CutCall, LostAnswer, Outcome, RefusedCall

# A request's time limit here. The services' own limits are shorter (chaos_stack.py), so a request beyond it hangs.
LIMIT_SECONDS = 300.0
PAUSE_SECONDS = 0.2  # after a refusal: clients that honour `retry-after` wait longer
OUTCOMES = {RefusedCall: Outcome.REFUSED, CutCall: Outcome.CUT, LostAnswer: Outcome.LOST}


class SteadyLoad:
    """Callers, and the outcomes of their requests."""

    def __init__(self, caller: GatewayCaller, counts: Mapping[str, int], pause: float = 0.0) -> None:
        """`counts`: callers for each kind of request.

        `pause`: seconds between a caller's first two requests; each later pause is longer.
        """
        self.attempts: list[Attempt] = []
        self.running = 0
        self._caller = caller
        self._counts = dict(counts)
        self._pause = pause
        self._stop = False
        self._news = asyncio.Event()

    @property
    def callers(self) -> int:
        """Returns the number of concurrent callers."""
        return sum(self._counts.values())

    def ended(self, *kinds: str, since: float, failed: bool = False) -> int:
        """Counts the requests of these kinds (default: all) that ended since then; `failed`: without an answer."""
        return sum(
            1
            for attempt in self.attempts
            if attempt.ended >= since
            and (not kinds or attempt.kind in kinds)
            and not (failed and attempt.outcome is Outcome.COMPLETED)
        )

    async def until(self, condition: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
        """Waits for a condition that depends on attempts. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), PAUSE_SECONDS)

    async def completed(self, kinds: Collection[str], since: float) -> float:
        """Waits until a request of each kind, begun since then, has completed; returns when the last of them did."""

        def ends() -> dict[str, float]:
            first: dict[str, float] = {}
            for attempt in self.attempts:
                if attempt.outcome is Outcome.COMPLETED and attempt.started >= since and attempt.kind in kinds:
                    first[attempt.kind] = min(attempt.ended, first.get(attempt.kind, attempt.ended))
            return first

        await self.until(lambda: len(ends()) == len(kinds))
        return max(ends().values())

    async def _ask(self, kind: str) -> None:
        pause = 0.0
        while not self._stop:
            self.running += 1
            made = await attempt(kind, lambda: self._caller.call(kind))
            self.running -= 1
            self.attempts.append(made)
            self._news.set()
            if made.outcome is Outcome.COMPLETED:
                pause += self._pause
                await asyncio.sleep(pause)
            else:
                await asyncio.sleep(PAUSE_SECONDS)


async def attempt(kind: str, call: Callable[[], Awaitable[None]], seconds: float = LIMIT_SECONDS) -> Attempt:
    """Runs one request and returns its outcome."""
    started, outcome, why = time.monotonic(), Outcome.COMPLETED, ""
    try:
        async with asyncio.timeout(seconds):
            await call()
    except TimeoutError:
        outcome, why = Outcome.HUNG, f"no end within {seconds:g} seconds"
    except (RefusedCall, CutCall, LostAnswer) as end:
        outcome, why = OUTCOMES[type(end)], str(end)
    return Attempt(kind, outcome, started, time.monotonic(), why)


@asynccontextmanager
async def steady_load(
    caller: GatewayCaller, counts: Mapping[str, int], pause: float = 0.0
) -> AsyncIterator[SteadyLoad]:
    """Runs load while the block runs; then waits for the requests in progress."""
    load = SteadyLoad(caller, counts, pause)
    async with asyncio.TaskGroup() as group:
        for kind, count in counts.items():
            for _ in range(count):
                group.create_task(load._ask(kind))
        try:
            yield load
        finally:
            load._stop = True
