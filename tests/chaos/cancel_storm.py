"""A storm of requests that are cancelled at random moments, and what is left of them."""

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
LONGEST_SECONDS = 2.0  # until a request is cancelled; many end before on their own
STORMS = 3  # measured at most: pools of threads grow up to their bounds when they are needed, a leak grows each time


@dataclass(frozen=True)
class StormFinding:
    """What a storm left behind: before it, after it."""

    requests: int
    cancelled: int
    before: Footprint
    after: Footprint

    @property
    def growth(self) -> float:
        """Of memory, as a share of what it was."""
        return self.after.memory / self.before.memory - 1

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.cancelled} of them cancelled. Before: {self.before}; after: {self.after} "
            f"({self.growth:+.1%}, {(self.after.memory - self.before.memory) / MIB:+.1f} MiB)."
        )


async def cancel_storm(stack: Stack, known: KnownAnswers, count: int) -> StormFinding:
    """One storm to warm up, and some that are measured, until nothing but memory has grown for good in one of them.

    Fails when something has grown in each.
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
    """How many were cancelled; the others had ended before. Then one of each kind may come to its end.

    Raises LostAnswer for an answer that is not right.
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
        for kind in SHARES:  # the stack is well, and has again what it keeps at hand
            await caller.call(kind)
    finally:
        await caller.close()
    return sum(task.result() for task in tasks)


def _dealt(shares: Mapping[str, int], count: int, chance: random.Random) -> list[str]:
    """So many kinds of requests, in their shares, in any order."""
    deck = [kind for kind, share in shares.items() for _ in range(share)]
    kinds = [deck[at % len(deck)] for at in range(count)]
    chance.shuffle(kinds)
    return kinds
