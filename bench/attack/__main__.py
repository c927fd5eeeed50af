"""Attacks a fresh stack, beside a bystander whose longest waits are printed: `python -m bench.attack [NAME ...]`.

The stack is `allm serve` with keys, and with the limits that it has beyond loopback. The attacker has one machine, and
where it says so an ordinary key. The bystander has another address, and opens a connection for each of its requests,
which must all succeed; none may wait much longer than alone.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby

from bench.attack import edge, faults, sound, text
from bench.attack.bystander import Bystander, bystander
from bench.attack.edge import MIB
from bench.attack.memory import Peaks, limits, peaks
from bench.attack.target import SECONDS, CannotAttack, Kind, Target, started

ALONE_SECONDS = 10.0
MOST_WAIT_SECONDS = 5.0  # beyond the longest wait alone
SHOWN_PROCESSES = 8
FILES = 20_000  # open files of this process, if the system allows so many


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack on a stack."""

    means: str  # what the attacker has and does
    run: Callable[[Target], Awaitable[Counter[str]]]  # returns how often the attacker got which answer
    fault: bool = False  # a process hangs: requests may fail until it is replaced
    kind: Kind = "plain"  # of the stack


async def held(target: Target, attack: Callable[[edge.Hold], Awaitable[Counter[str]]]) -> Counter[str]:
    """Runs an attack that holds something, and lets go after the target's time."""
    hold = edge.Hold()
    running = asyncio.ensure_future(attack(hold))
    full = asyncio.ensure_future(hold.full.wait())
    await asyncio.wait((running, full), return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(target.seconds)
    hold.over.set()
    full.cancel()
    return await running


def reconnections(target: Target) -> Counter[str]:
    """Reconnects for the target's time, in a process of its own: the bystander would wait for its event loop."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker:
        return attacker.submit(edge.reconnect, target.host, target.port, target.seconds).result()


ATTACKS: Mapping[str, Attack] = {
    "slow-tools": Attack("a key: 8 requests, 128 slow strict tools in each", lambda to: text.slow_tools(to, 8)),
    "slow-formats": Attack("a key: 8 slow schemas for answers", lambda to: text.slow_formats(to, 8)),
    "long-inputs": Attack("a key: 4 embeddings of 30 and 12 MB", lambda to: text.long_inputs(to, 4)),
    "many-messages": Attack("a key: 4 chats of 16,384 messages, 2 of a million", lambda to: text.many_messages(to, 6)),
    "full-queue": Attack("a key: 500 chats at once", lambda to: text.full_queue(to, 500)),
    "stored": Attack("a key: 8 stored responses of 5 MB", lambda to: text.stored(to, 8)),
    "watches": Attack(
        "no key: 5,000 Health/Watch on 10 connections",
        lambda to: held(to, lambda hold: edge.health_watches(f"{to.host}:{to.port}", hold)),
    ),
    "connections": Attack(
        "no key: 10,200 connections that send nothing",
        lambda to: held(to, lambda hold: edge.idle_connections(to.host, to.port, hold)),
    ),
    "reconnections": Attack(
        "no key: 10,200 connections that send nothing, opened again whenever they are closed",
        lambda to: asyncio.to_thread(reconnections, to),
    ),
    "bodies": Attack(
        "a key: 45 bodies of 31 MB without their last byte",
        lambda to: held(to, lambda hold: edge.unfinished_bodies(to.host, to.port, hold, key=to.attacker)),
    ),
    "uploads": Attack(
        "a key: 60 pictures of 10 MB without their last byte",
        lambda to: held(
            to,
            lambda hold: edge.unfinished_bodies(
                to.host, to.port, hold, bodies=60, size=10 * MIB, path="/v1/images/edits", key=to.attacker, form="image"
            ),
        ),
    ),
    "slow-uploads": Attack(
        "a key: 60 pictures of 10 MB that arrive at a byte a second",
        lambda to: held(
            to,
            lambda hold: edge.unfinished_bodies(
                to.host,
                to.port,
                hold,
                bodies=60,
                size=10 * MIB,
                path="/v1/images/edits",
                key=to.attacker,
                form="image",
                drip=1,
            ),
        ),
    ),
    "slow-readers": Attack(
        "a key: 200 chats that are read at a byte a second",
        lambda to: held(to, lambda hold: edge.slow_readers(to.host, to.port, hold, text.LONG, key=to.attacker)),
    ),
    "sound-bombs": Attack(
        "a key: 14 Ogg and FLAC files of 4 to 20 hours, or that claim centuries", lambda to: sound.sound_bombs(to, 2)
    ),
    "templates": Attack(
        "an operator: models with hostile chat templates, 8 chats each", lambda to: faults.templates(to, 8)
    ),
    "clock": Attack("a fault: the clock is set a day ahead, and two days back", faults.clock_jumps, kind="clock"),
    "no-inodes": Attack("a fault: the disk has no inodes", faults.no_inodes, kind="disk"),
    "frozen-disk": Attack("a fault: every write to the disk waits", faults.frozen_disk, kind="disk"),
    "cut-models-file": Attack("an operator: a models file that is cut", faults.cut_models_file, kind="models"),
    "hung-authorizer": Attack(
        "a fault: the authorizer is stopped", lambda to: faults.hung(to, "services.authorizer"), True
    ),
    "hung-gateway": Attack("a fault: Envoy is stopped", lambda to: faults.hung(to, "envoy --"), True),
    "hung-catalog": Attack("a fault: the catalog is stopped", lambda to: faults.hung(to, "services.catalog"), True),
}


async def attacked(target: Target, names: Iterable[str]) -> bool:
    """Runs attacks one after the other and prints the results. Returns False if the bystander was harmed."""
    await ready(target)
    async with peaks(target.pid) as most:
        async with bystander(target) as alone:
            await asyncio.sleep(ALONE_SECONDS)
        _print("alone", "", Counter(), alone)
        harmless = True
        for name in names:
            attack = ATTACKS[name]
            async with bystander(target) as beside:
                await asyncio.sleep(1.0)
                outcome = await attack.run(target)
            _print(name, attack.means, outcome, beside)
            if attack.fault:
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
