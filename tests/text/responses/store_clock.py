"""A clock that tests set, and the type of a function that opens a store with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.text.responses.store import ResponseStore

START = 1_000_000.0
OpenStore = Callable[[], Awaitable[ResponseStore]]


@dataclass
class Clock:
    """A clock that stands still unless a test sets `now`."""

    now: float = START

    def __call__(self) -> float:
        return self.now
