"""The long forms: `make chaos` and `make soak`. Each prints its findings and writes them to bench/results.

    python -m tests.chaos.chaos_run faults           # all faults, and a cancel storm
    python -m tests.chaos.chaos_run only WORD...     # faults whose names contain one of the words
    python -m tests.chaos.chaos_run soak SECONDS

Exits with 1 when a request hung or was lost, or resources are left behind.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.chaos.all_faults import LONG
from tests.chaos.cancel_storm import cancel_storm
from tests.chaos.chaos_stack import ChaosStack, chaos_stack
from tests.chaos.fault import Fault, Finding, suffer, table
from tests.chaos.outcome import FAILURES, Outcome
from tests.chaos.soak import soak

RESULTS = Path(__file__).parents[2] / "bench" / "results"
STORM = 1000
FLAT = 0.02  # allowed growth of memory
BAD = (Outcome.HUNG, Outcome.LOST)
SHOWN = 6  # reasons of failures printed for each fault


def main() -> int:
    """Runs the command that the arguments name."""
    what, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="allm-chaos-") as folder, chaos_stack(Path(folder)) as stack:
        if what == "only":
            return asyncio.run(_only(stack, rest))
        if what == "faults":
            name, (lines, good) = "chaos", asyncio.run(_faults(stack))
        else:
            name, (lines, good) = "soak", asyncio.run(_soak(stack, float(rest[0])))
    print(_written(name, lines))
    return 0 if good else 1


def _written(name: str, lines: list[str]) -> str:
    text = "\n".join([_where(), "", *lines]) + "\n"
    (RESULTS / f"{name}.md").write_text(text)
    return text


async def _only(stack: ChaosStack, words: list[str]) -> int:
    found = await _suffered(stack, [fault for fault in LONG if any(word in fault.name for word in words)])
    print(*table(found), *_told(found), sep="\n")
    return 0 if _harmless(found) else 1


async def _faults(stack: ChaosStack) -> tuple[list[str], bool]:
    found = await _suffered(stack, LONG)
    _written("chaos", [*table(found), "", *_told(found)])  # even if the storm fails
    try:
        storm = await cancel_storm(stack.operator.stack, stack.known, STORM)
        said, good = str(storm), storm.growth <= FLAT
    except AssertionError as left:
        said, good = f"LEFT BEHIND: {left}", False
    lines = [*table(found), "", f"Cancel storm, after one like it: {said}", "", "Errors of failed requests:", ""]
    return [*lines, *_told(found)], good and _harmless(found)


async def _suffered(stack: ChaosStack, faults: Iterable[Fault]) -> list[Finding]:
    found: list[Finding] = []
    for fault in faults:
        if "disk" in fault.name and stack.disk is None:
            print(f"{fault.name}: left out, file systems can only be mounted by the superuser", flush=True)
            continue
        found.append(await suffer(stack, fault))
        print(found[-1].row, flush=True)
    return found


def _told(found: list[Finding]) -> Iterator[str]:
    for finding in found:
        reported = sorted(finding.tally.reasons(Outcome.REFUSED, Outcome.CUT).items(), key=lambda item: -item[1])
        yield f"- {finding.fault.name}"
        yield from (f"  - {count} x {why}" for why, count in reported[:SHOWN])
        yield from (f"  - WRONG: {count} x {why}" for why, count in finding.tally.reasons(*BAD).items())


def _harmless(found: list[Finding]) -> bool:
    """Checks that no request hung or was lost, and that no spared request failed."""
    return not any(
        finding.tally.reasons(*BAD) or any(attempt.kind in finding.fault.spared for attempt in finding.tally.failed)
        for finding in found
    )


async def _soak(stack: ChaosStack, seconds: float) -> tuple[list[str], bool]:
    found = await soak(stack.operator.stack, stack.known, seconds)
    failed = found.tally.reasons(*FAILURES)
    good = not failed and found.growth <= FLAT and found.drift <= FLAT
    lines = [f"{seconds:g} seconds of mixed load.", "", *found.lines()]
    return [*lines, *(f"FAILED: {count} x {why}" for why, count in failed.items())], good


def _where() -> str:
    today, load = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}", os.getloadavg()[2]
    return f"{today}, {os.cpu_count()} cores; load of the machine in the last quarter of an hour: {load:.1f}."


if __name__ == "__main__":
    sys.exit(main())
