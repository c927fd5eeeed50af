"""Who a CancelledError is meant for: the task that gets it, or something else that it only waited for."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether the running task itself was told to stop. Raises RuntimeError where no event loop runs."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
