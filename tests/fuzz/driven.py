"""Coroutines run to their end by hand: no event loop costs time, none may wait for anything."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def driven(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that only ever gives way (`asyncio.sleep(0)`)."""
    try:
        while True:
            work.send(None)
    except StopIteration as stop:
        found: T = stop.value
        return found
