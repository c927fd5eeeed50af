"""Runs coroutines without an event loop: faster, and none may wait."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def driven(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that only yields control (`asyncio.sleep(0)`)."""
    try:
        while True:
            work.send(None)
    except StopIteration as stop:
        found: T = stop.value
        return found
