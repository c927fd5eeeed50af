"""The pool of confined processes: slots, queue, attempts and spare processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from services.errors import Internal, Overloaded
from services.sandbox import pool as pool_module
from services.sandbox.pool import TRIES, FairQueue, ProcessPool
from services.sandbox.process import ConfinedProcess
from tests.sandbox.toy_child import Do, Done, FromToy, Unreadable, started

Pool = ProcessPool[FromToy]


@asynccontextmanager
async def running(
    *, most: int = 1, queue: int = 1, spare: int | None = None, gate: asyncio.Event | None = None
) -> AsyncIterator[tuple[Pool, list[int]]]:
    """Yields a pool and the ids of all processes that it has started; all but the first one wait for `gate`."""
    pids: list[int] = []

    async def start() -> ConfinedProcess[FromToy]:
        process = await started()
        if pids and gate:
            await gate.wait()
        pids.append(process.pid)
        return process

    pool = Pool(start, most=most, queue=queue, seconds=60, busy=lambda waiting: f"{waiting} wait", spare=spare)
    try:
        yield pool, pids
    finally:
        await pool.close()
    assert not any(map(psutil.pid_exists, pids))


async def echo(pool: Pool) -> int:
    async with pool.slot(), pool.process(Do("echo")) as process:
        return (await process.answer(Done)).pid


async def test_one_process_takes_order_after_order_and_others_wait_within_the_queue() -> None:
    async with running(queue=2) as (pool, pids):
        results = await asyncio.gather(*(echo(pool) for _ in range(4)), return_exceptions=True)
        assert [str(each) for each in results if isinstance(each, Overloaded)] == ["2 wait"]
        assert len(pids) == 1
        assert [each for each in results if isinstance(each, int)] == pids * 3


async def test_idle_processes_that_died_cost_no_order() -> None:
    async with running(most=TRIES + 2, queue=9) as (pool, pids):
        await asyncio.gather(*(echo(pool) for _ in range(TRIES + 2)))
        dead = pool.processes
        assert len(dead) > TRIES
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        assert await echo(pool) == pids[-1]
        assert pids[-1] not in dead


async def test_processes_that_end_before_they_begin_are_not_started_without_end() -> None:
    async with running() as (pool, pids):
        with pytest.raises(Internal, match="the toy does not stay alive"):
            async with pool.slot(), pool.process(Unreadable()):
                raise AssertionError("it began")
        assert len(pids) == TRIES
        assert await echo(pool) == pids[-1]


async def test_an_order_that_is_left_costs_its_process() -> None:
    async with running() as (pool, pids):
        async with pool.slot(), pool.process(Do("spin")):
            pass
        assert not pool.processes
        assert not psutil.pid_exists(pids[0])


async def test_spare_processes_start_in_advance_and_a_rush_leaves_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "IDLE_SECONDS", 0.1)
    async with running(most=3, queue=9, spare=1) as (pool, pids):
        await pool.start()
        assert pool.processes == pids
        await asyncio.gather(*(echo(pool) for _ in range(6)))
        async with asyncio.timeout(60):
            while len(pool.processes) != 1:  # noqa: ASYNC110 (the timer belongs to the pool)
                await asyncio.sleep(0.01)


async def test_a_spare_process_that_starts_slowly_is_no_surplus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "IDLE_SECONDS", 0.0)
    gate = asyncio.Event()
    async with running(most=2, spare=1, gate=gate) as (pool, pids):
        await pool.start()
        await echo(pool)  # meanwhile another process starts
        assert pool.processes == pids
        await asyncio.sleep(0)  # what follows the order is over
        gate.set()
        async with asyncio.timeout(60):
            while len(pids) < 2 or len(pool.processes) != 1:  # noqa: ASYNC110 (the timer belongs to the pool)
                await asyncio.sleep(0.01)


async def test_closing_also_ends_a_process_that_still_starts() -> None:
    async with running() as (pool, pids):
        pool.start_soon()
        await pool.close()
        assert len(pids) == 1


class Orders:
    """Orders of several clients for one place; each holds it until `finish`."""

    def __init__(self, queue: int) -> None:
        self.turns = FairQueue(1, queue, lambda waiting: f"{waiting} wait")
        self.begun: list[str] = []
        self._end = asyncio.Semaphore(0)

    async def order(self, client: str) -> asyncio.Task[None]:
        async def hold() -> None:
            async with self.turns.place(client):
                self.begun.append(client)
                await self._end.acquire()

        task = asyncio.create_task(hold())
        await self.settle()
        return task

    async def finish(self, count: int) -> None:
        for _ in range(count):
            self._end.release()
            await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_client_with_many_orders_delays_another_by_one() -> None:
    orders = Orders(queue=9)
    for client in ("greedy", "greedy", "greedy", "greedy", "other", "third", "other"):
        await orders.order(client)
    await orders.finish(7)
    assert orders.begun == ["greedy", "other", "third", "greedy", "other", "greedy", "greedy"]
    assert not orders.turns._last
    assert not orders.turns.full


async def test_a_full_queue_refuses_the_latest_order_of_its_heaviest_client() -> None:
    orders = Orders(queue=3)
    first, *waiting = [await orders.order("greedy") for _ in range(4)]
    with pytest.raises(Overloaded, match="3 wait"):
        await (await orders.order("greedy"))
    other = await orders.order("other")
    with pytest.raises(Overloaded, match="3 wait"):
        await waiting[-1]
    with pytest.raises(Overloaded, match="3 wait"):  # two and one: a swap would change nothing
        await (await orders.order("other"))
    await orders.finish(4)
    await asyncio.gather(first, *waiting[:-1], other)
    assert orders.begun == ["greedy", "other", "greedy", "greedy"]


async def test_a_cancelled_wait_loses_no_place() -> None:
    orders = Orders(queue=9)
    tasks = [await orders.order(client) for client in ("a", "b", "c")]
    tasks[1].cancel()
    await orders.settle()
    assert orders.turns.waiting == 1
    orders._end.release()
    await asyncio.sleep(0)
    tasks[2].cancel()  # possibly in the moment in which it gets its place
    await orders.settle()
    assert not orders.turns.full
    last = await orders.order("d")
    await orders.finish(1)
    await last
