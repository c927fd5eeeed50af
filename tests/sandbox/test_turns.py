"""Places that waiting callers get in turn."""

from __future__ import annotations

import asyncio

import pytest

from services.errors import Overloaded
from services.sandbox.turns import Turns


class Orders:
    """Orders of several clients for one place; each holds it until `finish`."""

    def __init__(self, queue: int) -> None:
        self.turns = Turns(1, queue, lambda waiting: f"{waiting} wait")
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


async def test_a_full_queue_refuses_the_latest_order_of_whoever_holds_most_of_it() -> None:
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


async def test_who_gives_up_loses_no_place() -> None:
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
