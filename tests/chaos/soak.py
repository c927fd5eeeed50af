"""A mixed load for a long time: nothing may fail, and memory stays flat."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from tests.chaos.footprint import MIB, Footprint, at_rest, footprint, settled
from tests.chaos.gateway_caller import PICTURES, SOUND, STORED, TEXT, TYPED, WHOLE, GatewayCaller
from tests.chaos.known_answers import KnownAnswers
from tests.chaos.outcome import Outcome, Tally
from tests.chaos.steady_load import steady_load
from tests.stack import Stack

LOAD = {TEXT: 2, WHOLE: 1, TYPED: 1, STORED: 1, SOUND: 1, PICTURES: 1}
SAMPLES = 20  # measurements of memory; at least four


@dataclass(frozen=True)
class SoakFinding:
    """The result of a soak. `memory`: bytes at each sample, in order."""

    seconds: float
    tally: Tally
    memory: list[int]
    before: Footprint
    after: Footprint

    @property
    def growth(self) -> float:
        """The relative growth of idle memory, from before to after."""
        return self.after.memory / self.before.memory - 1

    @property
    def drift(self) -> float:
        """The relative growth of memory under load: the mean of its last quarter against that of its second."""
        quarter = len(self.memory) // 4
        return _mean(self.memory[-quarter:]) / _mean(self.memory[quarter : 2 * quarter]) - 1

    def lines(self) -> list[str]:
        """Returns the lines of a Markdown report."""
        kinds = sorted({attempt.kind for attempt in self.tally.attempts})
        rows = ["| kind | completed | failed | slowest, s |", "| --- | ---: | ---: | ---: |"]
        for kind in kinds:
            ended = [attempt for attempt in self.tally.attempts if attempt.kind == kind]
            whole = sum(attempt.outcome is Outcome.COMPLETED for attempt in ended)
            slowest = max(attempt.ended - attempt.started for attempt in ended)
            rows.append(f"| {kind} | {whole} | {len(ended) - whole} | {slowest:.1f} |")
        samples = ", ".join(f"{memory / MIB:.0f}" for memory in self.memory)
        return [
            *rows,
            "",
            f"Before: {self.before}; after: {self.after} ({self.growth:+.1%}).",
            "",
            f"Memory under load, MiB, every {self.seconds / len(self.memory):.0f} s: {samples} "
            f"(drift {self.drift:+.1%}, last quarter against the second).",
        ]


async def soak(stack: Stack, known: KnownAnswers, seconds: float, samples: int = SAMPLES) -> SoakFinding:
    """Loads a stack for this many seconds. Fails when processes, threads, files or tasks are left behind."""
    caller = GatewayCaller(stack, known)
    memory: list[int] = []
    try:
        async with steady_load(caller, LOAD) as load:
            await load.completed(LOAD, since=0.0)  # until caches and buffers have reached their size
        await at_rest(stack)
        before = footprint(stack)
        async with steady_load(caller, LOAD) as load:
            start = time.monotonic()
            for sample in range(1, samples + 1):
                await asyncio.sleep(max(0.0, start + seconds * sample / samples - time.monotonic()))
                memory.append((await asyncio.to_thread(footprint, stack)).memory)
            # On a slow machine each kind must still be requested.
            await load.completed(LOAD, since=start)
    finally:
        await caller.close()
    return SoakFinding(seconds, Tally(load.attempts, may_cut=False), memory, before, await settled(stack, before))


def _mean(numbers: list[int]) -> float:
    return sum(numbers) / len(numbers)
