"""Attacks a fresh stack, beside a bystander whose longest waits are printed: `python -m bench.attack [NAME ...]`.

The stack is `allm serve` with keys, and with the limits that it has beyond loopback. The attacker has one machine, and
where it says so an ordinary key. The bystander has another address, and opens a connection for each of its requests,
which must all succeed; none may wait much longer than alone.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import psutil

from bench.attack import edge, text
from bench.attack.bystander import Bystander, bystander
from bench.attack.edge import MIB
from bench.attack.target import Target, started

ALONE_SECONDS = 10.0
HELD_SECONDS = 20.0  # how long an attacker holds what it got
MOST_WAIT_SECONDS = 5.0  # beyond the longest wait alone
FILES = 20_000  # open files of this process, if the system allows so many


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack on a stack."""

    means: str  # what the attacker has and does
    run: Callable[[Target], Awaitable[Counter[str]]]  # returns how often the attacker got which answer
    fault: bool = False  # a process hangs: requests may fail until it is replaced


async def held(attack: Callable[[edge.Hold], Awaitable[Counter[str]]]) -> Counter[str]:
    """Runs an attack that holds something, and lets go after HELD_SECONDS."""
    hold = edge.Hold()
    running = asyncio.ensure_future(attack(hold))
    full = asyncio.ensure_future(hold.full.wait())
    await asyncio.wait((running, full), return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(HELD_SECONDS)
    hold.over.set()
    full.cancel()
    return await running


def reconnections(target: Target) -> Counter[str]:
    """Reconnects for HELD_SECONDS, in a process of its own: the bystander would wait for its event loop."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker:
        return attacker.submit(edge.reconnect, target.host, target.port, HELD_SECONDS).result()


async def hung(target: Target, name: str) -> Counter[str]:
    """Stops a process, and waits until another one is in its place."""
    found = next(
        each for each in psutil.Process(target.pid).children(recursive=True) if name in " ".join(each.cmdline())
    )
    os.kill(found.pid, signal.SIGSTOP)
    while psutil.pid_exists(found.pid):  # noqa: ASYNC110 (a process of another parent has no event)
        await asyncio.sleep(0.1)
    return Counter(replaced=1)


ATTACKS: Mapping[str, Attack] = {
    "slow-tools": Attack("a key: 8 requests, 128 slow strict tools in each", lambda to: text.slow_tools(to, 8)),
    "slow-formats": Attack("a key: 8 slow schemas for answers", lambda to: text.slow_formats(to, 8)),
    "long-inputs": Attack("a key: 4 embeddings of 30 and 12 MB", lambda to: text.long_inputs(to, 4)),
    "many-messages": Attack("a key: 4 chats of 16,384 messages, 2 of a million", lambda to: text.many_messages(to, 6)),
    "full-queue": Attack("a key: 500 chats at once", lambda to: text.full_queue(to, 500)),
    "stored": Attack("a key: 8 stored responses of 5 MB", lambda to: text.stored(to, 8)),
    "watches": Attack(
        "no key: 5,000 Health/Watch on 10 connections",
        lambda to: held(lambda hold: edge.health_watches(f"{to.host}:{to.port}", hold)),
    ),
    "connections": Attack(
        "no key: 10,200 connections that send nothing",
        lambda to: held(lambda hold: edge.idle_connections(to.host, to.port, hold)),
    ),
    "reconnections": Attack(
        "no key: 10,200 connections that send nothing, opened again whenever they are closed",
        lambda to: asyncio.to_thread(reconnections, to),
    ),
    "bodies": Attack(
        "a key: 45 bodies of 31 MB without their last byte",
        lambda to: held(lambda hold: edge.unfinished_bodies(to.host, to.port, hold, key=to.attacker)),
    ),
    "uploads": Attack(
        "a key: 60 pictures of 10 MB without their last byte",
        lambda to: held(
            lambda hold: edge.unfinished_bodies(
                to.host, to.port, hold, bodies=60, size=10 * MIB, path="/v1/images/edits", key=to.attacker, form="image"
            )
        ),
    ),
    "hung-authorizer": Attack("a fault: the authorizer is stopped", lambda to: hung(to, "services.authorizer"), True),
    "hung-gateway": Attack("a fault: Envoy is stopped", lambda to: hung(to, "envoy --"), True),
    "hung-catalog": Attack("a fault: the catalog is stopped", lambda to: hung(to, "services.catalog"), True),
}


async def attacked(target: Target, names: list[str]) -> bool:
    """Runs attacks one after the other and prints the results. Returns False if the bystander was harmed."""
    await ready(target)
    async with bystander(target) as alone:
        await asyncio.sleep(ALONE_SECONDS)
    _print("alone", "", Counter(), alone, target)
    harmless = True
    for name in names:
        attack = ATTACKS[name]
        async with bystander(target) as beside:
            await asyncio.sleep(1.0)
            outcome = await attack.run(target)
        _print(name, attack.means, outcome, beside, target)
        if attack.fault:
            await ready(target)
        else:
            harmless &= not beside.failed and beside.longest < alone.longest + MOST_WAIT_SECONDS
    return harmless


async def ready(target: Target) -> None:
    """Waits until every call of a bystander succeeds."""
    while True:
        async with bystander(target) as calls:
            await asyncio.sleep(1.0)
        if not calls.failed:
            return


def _print(name: str, means: str, outcome: Counter[str], beside: Bystander, target: Target) -> None:
    waits = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in beside.waits.items())
    sizes = sorted(target.memory().items(), key=lambda item: -item[1])[:3]
    print(f"{name}: {means}")
    print(f"    the bystander: {beside.calls} calls, {len(beside.failed)} failed; the longest waits: {waits}")
    for reason in beside.failed[:1]:
        print(f"    such as {reason}")
    if outcome:
        print(f"    the attacker got {', '.join(f'{count} x {what}' for what, count in outcome.items())}")
    print(f"    memory: {', '.join(f'{process} {size // MIB} MiB' for process, size in sizes)}", flush=True)


def main() -> int:
    """Attacks with the named attacks, or with all."""
    names = sys.argv[1:] or list(ATTACKS)
    if unknown := set(names) - ATTACKS.keys():
        raise SystemExit(f"there is no attack {', '.join(unknown)}; there are {', '.join(ATTACKS)}")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if most == resource.RLIM_INFINITY else min(FILES, most), most))
    with started() as target:
        return 0 if asyncio.run(attacked(target, names)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
