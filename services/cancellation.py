"""The target of a CancelledError: the task that receives it, or only something that it awaits; the end of a task."""

from __future__ import annotations

import asyncio
from typing import Any


def is_cancelled() -> bool:
    """Returns whether the running task itself was cancelled. Raises RuntimeError without an event loop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def ended(task: asyncio.Task[Any]) -> None:
    """Waits for a task to end, without cancelling it. If cancelled meanwhile, raises that after the task's end."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        raise cancelled
