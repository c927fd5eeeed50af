"""Places for a limited number of orders, given to waiting callers in turn."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.errors import Overloaded


class Turns:
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
