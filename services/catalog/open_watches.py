"""All open watches of one kind: limited in number, notified of changes, and ended when the catalog stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from services.errors import Overloaded


class Closable(Protocol):
    """A watch that can be closed."""

    def close(self) -> None:
        """Ends the watch."""


W = TypeVar("W", bound=Closable)


class OpenWatches(Generic[W]):
    """Up to `most` open watches. `of`: the thing watched, for errors; `count`: receives the number of open watches."""

    def __init__(self, most: int, of: str, count: Callable[[int], None] = lambda number: None) -> None:
        self._most = most
        self._of = of
        self._count = count
        self._watches: set[W] = set()
        self._closed = False

    @contextmanager
    def watch(self, make: Callable[[], W]) -> Iterator[W]:
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
