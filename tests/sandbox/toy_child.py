"""A confined process that does as it is ordered: `python -m tests.sandbox.toy_child FD`."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from services.sandbox import child
from services.sandbox.child import Begun, ChildReady, OrderRefused, Refusal, Unusable
from services.sandbox.process import ConfinedProcess, ConfinedProgram
from services.worker.channel import BlockingChannel

UNUSABLE = "TOY_UNUSABLE"  # environment variable: the reason why the process cannot work


@dataclass(frozen=True, slots=True)
class Do:
    """An order: echo, refuse, fill, kill or spin."""

    action: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An order that ends the process before it begins."""


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to an order."""

    pid: int


FromToy = ChildReady | Unusable | Begun | Done | OrderRefused
PROGRAM = ConfinedProgram(module="tests.sandbox.toy_child", messages=FromToy, name="toy", kind="the toy")


async def started() -> ConfinedProcess[FromToy]:
    """Starts a process."""
    return await ConfinedProcess.start(PROGRAM)


def _prepare(_: BlockingChannel[Do]) -> child.ChildWork:
    return child.ChildWork(memory_bytes=64 * 2**20, cpu_seconds=lambda _: 0.0, answer=_answer, no_memory="too large")


def _answer(order: Do) -> Done:
    if order.action == "refuse":
        raise Refusal("no", "action")
    if order.action == "fill":
        bytes(128 * 2**20)
    if order.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while order.action == "spin":
        pass
    return Done(os.getpid())


if __name__ == "__main__":
    child.run(Do, _prepare, os.environ.get(UNUSABLE, ""))
