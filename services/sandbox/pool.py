"""A pool of confined processes: idle ones wait warm, more start on demand, up to a limit. Callers wait in turn.

A process whose order did not end well never gets another caller's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from services.auth.caller import current_caller
from services.errors import AllmError, Internal, Overloaded
from services.sandbox.process import ConfinedGone, ConfinedProcess

M = TypeVar("M")

IDLE_SECONDS = 60.0  # after which idle processes beyond the spare ones end
TRIES = 2  # attempts with processes that die before they begin, in addition to those that were idle

log = logging.getLogger(__name__)


class ProcessPool(Generic[M]):
    """Carries out `most` orders concurrently; `queue` more may wait, and callers take turns."""

    def __init__(
        self,
        start: Callable[[], Awaitable[ConfinedProcess[M]]],
        *,
        most: int,
        queue: int,
        seconds: float,
        busy: Callable[[int], str],
        spare: int | None = None,
    ) -> None:
        """Creates a pool without processes.

        Args:
            start: starts a process.
            most: processes with an order.
            queue: orders that may wait for a process.
            seconds: time limit of an order's beginning and of its answer, if it has only one.
            busy: returns the message of Overloaded, given the number of waiting orders.
            spare: idle processes that are kept: one starts when none is idle, and those beyond end after IDLE_SECONDS.
                None: processes start only with an order, and idle ones stay.
        """
        self._start = start
        self._turns = FairQueue(most, queue, busy)
        self._seconds = seconds
        self._spare = spare
        self._idle: list[ConfinedProcess[M]] = []
        self._starting: asyncio.Task[None] | None = None  # starts an idle process
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Starts the spare processes, at least one. Raises Unsupported or Internal if a process cannot be started."""
        self._idle += await asyncio.gather(*(self._start() for _ in range(self._spare or 1)))

    async def close(self) -> None:
        """Ends all idle processes, also one that still starts; a busy one ends with its order."""
        self._closed = True
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.close() for process in idle))

    @property
    def processes(self) -> list[int]:
        """Process ids of the idle processes."""
        return [process.pid for process in self._idle]

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits until it is the current caller's turn to run a process. Raises Overloaded if the queue is full."""
        try:
            async with self._turns.place(current_caller().identity.subject):
                yield
        finally:
            self._replenish()

    @asynccontextmanager
    async def process(self, order: object) -> AsyncIterator[ConfinedProcess[M]]:
        """Yields a process that has begun with the order; to be used within `slot`.

        Raises:
            Unsupported, Internal: a process cannot be started, or none stays alive until the order begins.
        """
        process = await self._begun(order)
        try:
            yield process
        finally:
            await self._give_back(process)

    def start_soon(self) -> None:
        """Starts a process in the background if none is idle."""
        if not (self._idle or self._starting or self._closed):
            self._starting = self._spawn(self._start_idle())

    async def _begun(self, order: object) -> ConfinedProcess[M]:
        """Passes over processes that died while they were idle."""
        left = len(self._idle) + TRIES
        while True:
            process = await self._take()
            try:
                if await process.begin(order, self._seconds):
                    return process
            except BaseException:
                await process.close()
                raise
            await process.close()
            left -= 1
            if not left:
                raise Internal(f"{process.kind} does not stay alive: the service's log has the reason")

    async def _take(self) -> ConfinedProcess[M]:
        if not self._idle and self._starting:
            await asyncio.wait([self._starting])  # it is ready sooner than a new one
        process = self._idle.pop() if self._idle else await self._start()
        self._replenish()
        return process

    async def _give_back(self, process: ConfinedProcess[M]) -> None:
        if not process.reusable or self._closed:
            await process.close()
        else:
            self._keep(process)

    def _keep(self, process: ConfinedProcess[M]) -> None:
        process.idle_since = time.monotonic()
        self._idle.append(process)
        if self._spare is not None:
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._trim, self._spare)

    def _replenish(self) -> None:
        if self._spare is not None and not self._turns.full:
            self.start_soon()

    async def _start_idle(self) -> None:
        try:
            self._keep(await self._start())
        except (AllmError, ConfinedGone):
            log.warning("no process waits: the next order starts one, and its caller gets the error if that fails")
        finally:
            self._starting = None

    def _trim(self, spare: int) -> None:
        """Ends idle processes beyond the spare ones; those unused longest end first."""
        now = time.monotonic()
        while len(self._idle) > spare:
            early = self._idle[0].idle_since + IDLE_SECONDS - now
            if early > 0:  # the loop's clock lags behind, or this process was used since
                asyncio.get_running_loop().call_later(early, self._trim, spare)
                return
            self._spawn(self._idle.pop(0).close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class FairQueue:
    """Gives out `places`. While none is free, up to `queue` orders wait, and the next place goes to the client whose
    last turn was longest ago: a client with many orders delays another by the one that has begun.

    If the queue is full, the client that holds most of it makes way: its latest order is refused.
    """

    def __init__(self, places: int, queue: int, busy: Callable[[int], str]) -> None:
        """`busy` returns the message of Overloaded, given the number of waiting orders."""
        self._free = places
        self._queue = queue
        self._busy = busy
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by client
        self._last: dict[str, int] = {}  # number of the last turn of each client that has orders
        self._held: Counter[str] = Counter()  # places, by client
        self._turn = 0

    @property
    def full(self) -> bool:
        """True while no place is free."""
        return not self._free

    @property
    def waiting(self) -> int:
        """Number of waiting orders."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """Holds a place while the block runs. Raises Overloaded if the queue is full."""
        if self._free:
            self._free -= 1
            self._take(client)
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._release(client)

    async def _wait(self, client: str) -> None:
        self._make_room(client)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and not turn.exception():
                self._release(client)  # its place came too late
            else:
                self._leave(client, turn)
            raise

    def _make_room(self, client: str) -> None:
        if self.waiting < self._queue:
            return
        most = max(self._waiting, key=lambda one: len(self._waiting[one]), default=client)
        refused = Overloaded(self._busy(self.waiting))
        if len(self._waiting.get(most, ())) <= len(self._waiting.get(client, ())) + 1:
            raise refused
        turn = self._waiting[most][-1]
        self._leave(most, turn)
        turn.set_exception(refused)

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(client)
        if turns and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[client]
                self._forget(client)

    def _take(self, client: str) -> None:
        self._turn += 1
        self._last[client] = self._turn
        self._held[client] += 1

    def _release(self, client: str) -> None:
        """Frees a place, or passes it on to the next client."""
        self._held[client] -= 1
        self._forget(client)
        while self._waiting:
            following = min(self._waiting, key=lambda one: self._last.get(one, 0))
            turn = self._waiting[following][0]
            self._leave(following, turn)
            if not turn.done():
                self._take(following)
                turn.set_result(None)
                return
        self._free += 1

    def _forget(self, client: str) -> None:
        if client not in self._waiting and not self._held[client]:
            del self._held[client]
            self._last.pop(client, None)
