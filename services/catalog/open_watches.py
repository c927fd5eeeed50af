"""A watch, and all open watches of one kind: limited in number, and ended when the catalog stops."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from services.errors import Overloaded

E = TypeVar("E")


class OpenWatch(ABC, Generic[E]):
    """A single watcher. A subclass stores changes, sets `_wake`, and makes events of them."""

    def __init__(self) -> None:
        self._closed = False
        self._wake = asyncio.Event()

    @abstractmethod
    def _take(self) -> E | None:
        """Returns the next event; None if there is none yet."""

    async def next(self) -> E | None:
        """Waits for the next event and returns it; None when the catalog stops."""
        while not self._closed:
            if (event := self._take()) is not None:
                return event
            self._wake.clear()
            await self._wake.wait()
        return None

    def close(self) -> None:
        """Ends the watch."""
        self._closed = True
        self._wake.set()


W = TypeVar("W", bound=OpenWatch[Any])


class OpenWatches(Generic[W]):
    """Up to `most` open watches. `of`: the thing watched, for errors; `count`: receives the number of open watches."""

    def __init__(self, most: int, of: str, count: Callable[[int], None] = lambda number: None) -> None:
        self._most = most
        self._of = of
        self._count = count
        self._watches: set[W] = set()
        self._closed = False

    @contextmanager
    def open(self, make: Callable[[], W]) -> Iterator[W]:
        """Opens a watch for the duration of the block. Raises Overloaded when there are too many."""
        if len(self._watches) >= self._most:
            raise Overloaded(f"{self._most} watches of {self._of} are open, which is the limit", retry_after=5)
        watch = make()
        self._watches.add(watch)
        self._count(len(self._watches))
        try:
            if self._closed:
                watch.close()
            yield watch
        finally:
            self._watches.discard(watch)
            self._count(len(self._watches))

    def __iter__(self) -> Iterator[W]:
        """Iterates over the open watches."""
        return iter(self._watches)

    def close(self) -> None:
        """Ends all watches, including any opened later."""
        self._closed = True
        for watch in self._watches:
            watch.close()
