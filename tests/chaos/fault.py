"""A fault, its injection, and its measured effects."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from tests.chaos.chaos_stack import ChaosStack
from tests.chaos.footprint import SERVICES, at_rest
from tests.chaos.gateway_caller import GatewayCaller
from tests.chaos.outcome import Outcome, Tally
from tests.chaos.stack_members import service_pid
from tests.chaos.steady_load import SteadyLoad, steady_load

# Injects the fault and repairs it if needed; returns the moment from which on the stack should be healthy again.
Inject = Callable[[ChaosStack, SteadyLoad], Awaitable[float]]


async def _nothing(stack: ChaosStack) -> None:
    """The default preparation: none."""


@dataclass(frozen=True)
class Fault:
    """A fault that occurs while requests run."""

    name: str
    inject: Inject
    load: Mapping[str, int]  # callers for each kind of request
    may_cut: bool = False  # true: connections may break, because the fault kills or stops their server
    spared: frozenset[str] = frozenset()  # kinds of which no request may fail
    late: frozenset[str] = frozenset()  # kinds that get no answer before the fault is over
    prepare: Callable[[ChaosStack], Awaitable[None]] = _nothing


@dataclass(frozen=True)
class Finding:
    """The effects of a fault on the requests that ran meanwhile."""

    fault: Fault
    tally: Tally
    recovery_seconds: float
    restarted: frozenset[str] = frozenset()  # services that the supervisor had to start again

    @property
    def row(self) -> tuple[str, ...]:
        """A row of the printed table."""
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
    """Returns the lines of a Markdown table."""
    align = ["---", *["---:"] * (len(HEAD) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (HEAD, align, *(finding.row for finding in findings))]


async def suffer(stack: ChaosStack, fault: Fault, pause: float = 0.0) -> Finding:
    """Injects a fault under load, waits until every kind of request succeeds again, and then until the stack is idle.

    `pause`: seconds between a caller's first two requests; each later pause is longer.
    """
    await fault.prepare(stack)
    before = _service_pids(stack)
    caller = GatewayCaller(stack.operator.stack, stack.known)
    try:
        async with steady_load(caller, fault.load, pause) as load:
            # A fault before the first answers would interrupt nothing.
            await load.completed(set(fault.load) - fault.late, since=0.0)
            await load.until(lambda: load.running > 0)
            well = await fault.inject(stack, load)
            recovered = await load.completed(set(fault.load), since=well)
    finally:
        await caller.close()
    await at_rest(stack.operator.stack)
    restarted = frozenset(name for name, _ in before ^ _service_pids(stack))
    return Finding(fault, Tally(load.attempts, may_cut=fault.may_cut), recovered - well, restarted)


def _service_pids(stack: ChaosStack) -> set[tuple[str, int]]:
    return {(name, service_pid(stack.operator.stack, name)) for name in SERVICES}


def in_turn(*faults: Fault) -> Fault:
    """Combines faults under one load: each is injected when every kind of request succeeds after the previous fault.

    They may differ only in name and injection.
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
    """Returns the clock of attempts."""
    return time.monotonic()
