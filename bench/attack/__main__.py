"""Attacks a fresh stack, beside a bystander whose longest waits are printed: `python -m bench.attack [NAME ...]`.

The stack is `allm serve` with keys, and with the limits that it has beyond loopback. The bystander's requests must all
succeed; none may wait much longer than alone.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby

from bench.attack.attacks import ATTACKS, attack
from bench.attack.bystander import Bystander, bystander
from bench.attack.edge import MIB
from bench.attack.memory import Peaks, limits, peaks
from bench.attack.target import SECONDS, CannotAttack, Target, started

ALONE_SECONDS = 10.0
MOST_WAIT_SECONDS = 5.0  # beyond the longest wait alone
SHOWN_PROCESSES = 8
BUDGET = (
    "the attacker has this machine, one address, and where it says so one ordinary key without limits of its own; the "
    "bystander has another key and address, and opens a connection for each request"
)
FILES = 20_000  # open files of this process, if the system allows so many


async def attacked(target: Target, names: Iterable[str]) -> bool:
    """Runs attacks one after the other and prints the results. Returns False if the bystander was harmed."""
    await ready(target)
    async with peaks(target.pid) as most:
        async with bystander(target) as alone:
            await asyncio.sleep(ALONE_SECONDS)
        _print("alone", "", Counter(), alone)
        harmless = True
        for name in names:
            # A process of its own: the bystander would wait for the attacker's event loop.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker:
                async with bystander(target) as beside:
                    await asyncio.sleep(1.0)
                    outcome = await asyncio.wrap_future(attacker.submit(attack, name, target))
            _print(name, ATTACKS[name].means, outcome, beside)
            if ATTACKS[name].fault:
                await ready(target)
            else:
                harmless &= not beside.failed and beside.longest < alone.longest + MOST_WAIT_SECONDS
    _print_peaks(most)
    return harmless and not most.passing()


async def ready(target: Target) -> None:
    """Waits until every call of a bystander succeeds."""
    while True:
        async with bystander(target) as calls:
            await asyncio.sleep(1.0)
        if not calls.failed:
            return


def _print(name: str, means: str, outcome: Counter[str], beside: Bystander) -> None:
    waits = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in beside.waits.items())
    print(f"{name}: {means}")
    print(f"    the bystander: {beside.calls} calls, {len(beside.failed)} failed; the longest waits: {waits}")
    for reason in beside.failed[:1]:
        print(f"    such as {reason}")
    if outcome:
        print(f"    the attacker got {', '.join(f'{count} x {what}' for what, count in outcome.items())}")
    sys.stdout.flush()


def _print_peaks(most: Peaks) -> None:
    print("peak memory, and the limit of each container in the chart:")
    for container, limit in limits().items():
        size = most.containers.get(container, 0)
        passes = "   PASSES ITS LIMIT" if size > limit else ""
        print(f"    {container}: {size // MIB} of {limit // MIB} MiB{passes}")
    for process, size in sorted(most.processes.items(), key=lambda item: -item[1])[:SHOWN_PROCESSES]:
        print(f"    {process}: {size // MIB} MiB")
    sys.stdout.flush()


def main() -> int:
    """Attacks with the named attacks, or with all."""
    parser = argparse.ArgumentParser(prog="python -m bench.attack", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all, which are {', '.join(ATTACKS)}")
    about = "how long an attacker holds what it got, and a fault lasts; 3600 for slow uploads of an hour (default: 20)"
    parser.add_argument("--seconds", type=float, default=SECONDS, help=about)
    asked = parser.parse_args()
    names = asked.names or list(ATTACKS)
    if unknown := set(names) - ATTACKS.keys():
        parser.error(f"there is no attack {', '.join(unknown)}; there are {', '.join(ATTACKS)}")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if most == resource.RLIM_INFINITY else min(FILES, most), most))
    print(BUDGET, flush=True)
    harmless = True
    for kind, some in groupby(names, key=lambda name: ATTACKS[name].kind):
        group = list(some)
        try:
            with started(kind, asked.seconds) as target:
                harmless &= asyncio.run(attacked(target, group))
        except CannotAttack as reason:
            print(f"{', '.join(group)}: left out, {reason}", flush=True)
    return 0 if harmless else 1


if __name__ == "__main__":
    raise SystemExit(main())
