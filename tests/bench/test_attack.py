"""The attacks of `make attack` on the text service, few at a time: everybody else's requests succeed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from bench.attack import text
from bench.attack.bystander import bystander
from bench.attack.target import Target
from tests.case import case
from tests.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_bystander_is_served_during_attacks(stack: Stack) -> None:
    attacks: dict[Callable[[Target, int], Awaitable[Counter[str]]], int] = {
        text.slow_tools: 2,
        text.slow_formats: 2,
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
                allowed = ("400", "413")
                if attack in {text.slow_formats, text.full_queue}:
                    allowed = ("200", "400", "429")
                assert all(answer.startswith(allowed) for answer in outcome), outcome

    asyncio.run(attacked())
