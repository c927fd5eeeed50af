"""The attacks of `make attack` on the text service, few at a time: everybody else's requests succeed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from bench.attack import edge, text
from bench.attack.bystander import bystander
from bench.attack.memory import Peaks, limits, resident
from bench.attack.target import Target
from tests.case import case
from tests.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
GIB = 1024**3


def test_a_bystander_is_served_during_attacks(stack: Stack) -> None:
    attacks: dict[Callable[[Target, int], Awaitable[Counter[str]]], int] = {
        text.slow_tools: 2,
        text.slow_formats: 2,
        text.slow_masks: 1,
        text.long_inputs: 2,
        text.many_messages: 3,
        text.full_queue: 40,
    }

    async def attacked() -> None:
        target = Target(f"http://127.0.0.1:{stack.port}", stack.process.pid, "", "")
        for attack, requests in attacks.items():
            with case(attack=attack.__name__):
                async with bystander(target) as beside:
                    outcome = await attack(target, requests)
                assert beside.calls
                assert beside.failed == []
                assert outcome.total() == requests
                served = attack in {text.slow_formats, text.slow_masks, text.full_queue}
                allowed = ("200", "400", "413", "429") if served else ("400", "413")
                assert all(answer.startswith(allowed) for answer in outcome), outcome

    asyncio.run(attacked())


def test_a_bystander_is_served_while_others_read_and_write_slowly(stack: Stack) -> None:
    async def attacked() -> None:
        target = Target(f"http://127.0.0.1:{stack.port}", stack.process.pid, "", "")
        address = target.host, target.port
        for slowly in ("reading", "writing"):
            with case(slowly=slowly):
                hold = edge.Hold()
                held = (
                    edge.slow_readers(*address, hold, text.LONG, 20)
                    if slowly == "reading"
                    else edge.unfinished_bodies(*address, hold, 20, drip=1)
                )
                running = asyncio.create_task(held)
                await hold.full.wait()
                async with bystander(target) as beside:
                    pass
                hold.over.set()
                assert beside.calls
                assert beside.failed == []
                assert (await running)[edge.HELD] == 20
        most = Peaks()
        most.add(resident(target.pid))
        assert {name.split()[0] for name in most.processes} >= {"envoy", "services.catalog", "services.text.engine"}
        assert most.passing() == []

    asyncio.run(attacked())


def test_containers_that_pass_their_limit_are_named() -> None:
    most = Peaks()
    most.add({"services.text 1": GIB, "services.text.engine 2": 6 * GIB, "envoy 3": GIB // 2})
    most.add({"services.text 1": 2 * GIB, "services.text.engine 4": 7 * GIB, "elsewhere 5": 99 * GIB})
    assert most.containers["text"] == 9 * GIB
    assert most.passing() == ["text"]
    assert limits()["text"] == 8 * GIB
