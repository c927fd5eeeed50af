"""Tests that decide which task a CancelledError is meant for."""

from __future__ import annotations

import asyncio

import pytest

from services.rpc.deadline import ended, is_cancelled


async def waiting(work: asyncio.Task[None]) -> bool:
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        return is_cancelled()
    raise AssertionError("nothing was cancelled")


@pytest.mark.parametrize("itself", [True, False])
async def test_cancelled_requests_are_reported_to_it(itself: bool) -> None:
    work = asyncio.create_task(asyncio.sleep(3600))
    waiter = asyncio.create_task(waiting(work))
    await asyncio.sleep(0)
    (waiter if itself else work).cancel()
    assert await waiter == itself
    work.cancel()


def test_outside_a_call_there_is_no_task() -> None:
    with pytest.raises(RuntimeError):
        is_cancelled()


async def test_the_end_of_a_task_is_awaited_even_if_the_waiter_is_cancelled() -> None:
    going_on = asyncio.Event()
    work = asyncio.create_task(going_on.wait())
    waiter = asyncio.create_task(ended(work))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.sleep(0)
    assert not waiter.done()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert work.done()
    assert not work.cancelled()
