"""Runs changes of disk and memory one by one, each to its end: a cancelled caller must not leave the two different."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class WholeChanges:
    """Runs changes in order of arrival."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` after all earlier changes, even if the caller is cancelled. Raises what it raises."""

        async def alone() -> T:
            async with self._turn:
                return await work()

        task = asyncio.create_task(alone())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Waits for running changes."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
