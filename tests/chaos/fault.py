"""A fault, how it is injected, and what is measured of it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from tests.chaos.chaos_stack import ChaosStack
from tests.chaos.footprint import at_rest
from tests.chaos.gateway_caller import GatewayCaller
from tests.chaos.outcome import Outcome, Tally
from tests.chaos.steady_load import SteadyLoad, steady_load

# Injects and, where it does not go away by itself, repairs; returns the moment from which on all should be well again.
Inject = Callable[[ChaosStack, SteadyLoad], Awaitable[float]]


async def _nothing(stack: ChaosStack) -> None:
    """What most faults need beforehand."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong while requests run."""

    name: str
    inject: Inject
    load: Mapping[str, int]  # callers for each kind of request
    may_cut: bool = False  # whether connections may break: what served them is killed or stopped
    spared: frozenset[str] = frozenset()  # kinds of which no request may fail at all
    late: frozenset[str] = frozenset()  # kinds that have no answer before the fault is over
    prepare: Callable[[ChaosStack], Awaitable[None]] = _nothing


@dataclass(frozen=True)
class Finding:
    """What a fault did to the requests that ran meanwhile."""

    fault: Fault
    tally: Tally
    recovery_seconds: float

    @property
    def row(self) -> tuple[str, ...]:
        """Of the printed table."""
        tally = self.tally
        counts = [tally.count(outcome) for outcome in (Outcome.COMPLETED, Outcome.REFUSED, Outcome.CUT)]
        bad = [tally.count(Outcome.HUNG), tally.count(Outcome.LOST)]
        return (
            self.fault.name,
            str(len(tally.attempts)),
            str(counts[0]),
            str(counts[1] + counts[2]),
            str(counts[2]),
            *map(str, bad),
            f"{self.recovery_seconds:.1f}",
        )


HEAD = ("fault", "sent", "completed", "failed clearly", "of these, cut", "hung", "lost", "recovery, s")


def table(findings: list[Finding]) -> list[str]:
    """Lines of Markdown."""
    align = ["---", *["---:"] * (len(HEAD) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (HEAD, align, *(finding.row for finding in findings))]


async def suffer(stack: ChaosStack, fault: Fault, pause: float = 0.0) -> Finding:
    """Injects a fault under load, waits until everything is answered again, and then until nothing is at work.

    `pause`: seconds that a caller waits after its first answer; each later pause is longer.
    """
    await fault.prepare(stack)
    caller = GatewayCaller(stack.operator.stack, stack.known)
    try:
        async with steady_load(caller, fault.load, pause) as load:
            # With a fault before the first answers there would be nothing to lose.
            await load.completed(set(fault.load) - fault.late, since=0.0)
            await load.until(lambda: load.running > 0)
            well = await fault.inject(stack, load)
            recovered = await load.completed(set(fault.load), since=well)
    finally:
        await caller.close()
    await at_rest(stack.operator.stack)
    return Finding(fault, Tally(load.attempts, may_cut=fault.may_cut), recovered - well)


def in_turn(*faults: Fault) -> Fault:
    """Several faults under one load: each is injected when every kind of request succeeds again after the one before.

    They agree in everything but their names and what they inject.
    """
    first, *others = faults
    agreed = (first.load, first.may_cut, first.spared)
    assert all((fault.load, fault.may_cut, fault.spared) == agreed for fault in others)

    async def inject(stack: ChaosStack, load: SteadyLoad) -> float:
        well = await first.inject(stack, load)
        for fault in others:
            await load.completed(fault.load, since=well)
            await load.until(lambda: load.running > 0)
            well = await fault.inject(stack, load)
        return well

    return replace(first, name="; ".join(fault.name for fault in faults), inject=inject)


def now() -> float:
    """The clock of attempts."""
    return time.monotonic()
