"""A fake worker that does nothing by itself: the test writes its messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from services.worker.process import WorkerDied


class PuppetWorker:
    """A stand-in for WorkerProcess. `accept` returns the immediate answer to a message, or None."""

    pid = 1
    ended = False

    def __init__(self, accept: Callable[[Any], Any] = lambda message: None) -> None:
        self.sent: list[Any] = []
        self.killed = False
        self._accept = accept
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if (answer := self._accept(message)) is not None:
            self._inbox.put_nowait(answer)

    def say(self, *messages: Any) -> None:
        for message in messages:
            self._inbox.put_nowait(message)

    async def messages(self) -> AsyncIterator[Any]:
        while message := await self._inbox.get():
            if isinstance(message, Exception):
                raise message
            yield message
        raise WorkerDied("worker 1 ended: it was killed")

    def kill(self) -> None:
        self.killed = True
        self._inbox.put_nowait(None)

    async def close(self, ask: Any = None) -> None:
        self.kill()
