"""The target of a CancelledError: the task that receives it, or only something that it awaits."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Returns whether the running task itself was cancelled. Raises RuntimeError without an event loop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
