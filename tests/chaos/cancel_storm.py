"""A storm of requests that are cancelled at random moments, and the resources that it leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.chaos.footprint import MIB, Footprint, at_rest, footprint, settled
from tests.chaos.gateway_caller import PICTURES, SOUND, TEXT, TYPED, WHOLE, GatewayCaller
from tests.chaos.known_answers import KnownAnswers
from tests.chaos.outcome import LostAnswer
from tests.chaos.steady_load import attempt
from tests.stack import Stack

SHARES = {TEXT: 5, WHOLE: 2, TYPED: 1, SOUND: 1, PICTURES: 1}  # of ten requests
AT_ONCE = 16
LONGEST_SECONDS = 2.0  # before a request is cancelled; many end earlier by themselves
STORMS = 3  # storms measured at most: thread pools grow to their bounds on demand, a leak grows each time


@dataclass(frozen=True)
class StormFinding:
    """The footprint before and after a storm."""

    requests: int
    cancelled: int
    before: Footprint
    after: Footprint

    @property
    def growth(self) -> float:
        """The relative growth of memory."""
        return self.after.memory / self.before.memory - 1

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.cancelled} of them cancelled. Before: {self.before}; after: {self.after} "
            f"({self.growth:+.1%}, {(self.after.memory - self.before.memory) / MIB:+.1f} MiB)."
        )


async def cancel_storm(stack: Stack, known: KnownAnswers, count: int) -> StormFinding:
    """Runs a warm-up storm, then measured storms until one of them leaves no permanent growth except memory.

    Fails when every storm leaves growth.
    """
    await _storm(stack, known, count, seed=1)
    for left in reversed(range(STORMS)):
        await at_rest(stack)
        before = footprint(stack)
        cancelled = await _storm(stack, known, count, seed=2 + left)
        try:
            after = await settled(stack, before)
        except AssertionError:
            if not left:
                raise
        else:
            break
    return StormFinding(count, cancelled, before, after)


async def _storm(stack: Stack, known: KnownAnswers, count: int, seed: int) -> int:
    """Runs a storm and returns the number of cancelled requests; the others ended earlier. Then runs one of each kind.

    Raises LostAnswer for a wrong answer.
    """
    chance = random.Random(seed)  # noqa: S311 - moments to cancel
    places = asyncio.Semaphore(AT_ONCE)
    caller = GatewayCaller(stack, replace(known, sentences=2))  # long streams: most are cancelled in the middle

    async def one(kind: str, seconds: float) -> bool:
        async with places:
            task = asyncio.create_task(attempt(kind, lambda: caller.call(kind)))
            done, _ = await asyncio.wait((task,), timeout=seconds)
            if done:
                ended = task.result()
                if ended.outcome.name == "LOST":
                    raise LostAnswer(ended.why)
                return False
            task.cancel()
            await asyncio.wait((task,))
            return True

    try:
        kinds = _dealt(SHARES, count, chance)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(kind, chance.uniform(0, LONGEST_SECONDS))) for kind in kinds]
        for kind in SHARES:  # the stack is healthy, and fills its caches again
            await caller.call(kind)
    finally:
        await caller.close()
    return sum(task.result() for task in tasks)


def _dealt(shares: Mapping[str, int], count: int, chance: random.Random) -> list[str]:
    """Returns `count` kinds of requests, in their shares, in random order."""
    deck = [kind for kind, share in shares.items() for _ in range(share)]
    kinds = [deck[at % len(deck)] for at in range(count)]
    chance.shuffle(kinds)
    return kinds
