"""All attacks, by name."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from bench.attack import edge, faults, sound, text
from bench.attack.edge import MIB
from bench.attack.target import Kind, Target


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack on a stack."""

    means: str  # what the attacker has and does
    run: Callable[[Target], Coroutine[Any, Any, Counter[str]]]  # returns how often the attacker got which answer
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


ATTACKS: Mapping[str, Attack] = {
    "slow-tools": Attack("a key: 8 requests, 128 slow strict tools in each", lambda to: text.slow_tools(to, 8)),
    "slow-formats": Attack("a key: 8 slow schemas for answers", lambda to: text.slow_formats(to, 8)),
    "slow-masks": Attack("a key: 64 answers whose every token is slow to find", lambda to: text.slow_masks(to, 64)),
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
        lambda to: edge.reconnect(to.host, to.port, to.seconds),
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


def attack(name: str, target: Target) -> Counter[str]:
    """Runs an attack; returns how often the attacker got which answer."""
    return asyncio.run(ATTACKS[name].run(target))
