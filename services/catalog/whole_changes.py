"""Changes of disk and memory, one at a time and each to its end: a caller who gives up must not leave the two apart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class WholeChanges:
    """Runs changes in the order in which they come."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Does `work` once those before it are done, also where whoever waits for it is cancelled. Raises what it
        raises."""

        async def alone() -> T:
            async with self._turn:
                return await work()

        task = asyncio.create_task(alone())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Waits for what is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
