"""A confined process: its start, its answers, and its end by an order."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.errors import Internal, Unsupported
from services.sandbox.child import OrderRefused
from services.sandbox.process import ConfinedGone, ConfinedProcess
from tests.sandbox.toy_child import PROGRAM, UNUSABLE, Do, Done, FromToy, Unreadable, started

SECONDS = 60


@asynccontextmanager
async def toy() -> AsyncIterator[ConfinedProcess[FromToy]]:
    process = await started()
    try:
        yield process
    finally:
        await process.close()


async def test_it_answers_refuses_and_goes_on() -> None:
    async with toy() as process:
        for action, answer in (
            ("echo", Done(process.pid)),
            ("refuse", OrderRefused("no", "action")),
            ("fill", OrderRefused("too large")),
            ("echo", Done(process.pid)),
        ):
            assert await process.begin(Do(action), SECONDS)
            assert not process.reusable
            assert await process.answer(Done, OrderRefused) == answer
            assert process.reusable


@pytest.mark.parametrize("action", ["kill", "spin"])
async def test_an_order_may_end_only_its_process(action: str) -> None:
    """The kernel ends a process that spins: its processor time is up."""
    async with toy() as process:
        assert await process.begin(Do(action), SECONDS)
        with pytest.raises(ConfinedGone):
            await process.answer(Done)
        assert not process.reusable


async def test_a_process_that_ends_before_it_begins_is_no_fault_of_the_order() -> None:
    async with toy() as process:
        assert not await process.begin(Unreadable(), SECONDS)


async def test_an_answer_of_another_class_ends_the_use_of_the_process() -> None:
    async with toy() as process:
        assert await process.begin(Do("refuse"), SECONDS)
        with pytest.raises(Internal, match="the toy sent OrderRefused instead of an answer"):
            await process.answer(Done)
        assert not process.reusable


async def test_a_program_that_cannot_work_or_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Internal, match="the toy cannot be started"):
        await ConfinedProcess.start(dataclasses.replace(PROGRAM, module="tests.sandbox.missing"))
    monkeypatch.setenv(UNUSABLE, "nothing works here")
    with pytest.raises(Unsupported, match="nothing works here"):
        await started()
