"""All watches of one kind that are open: not too many, told of what changes, and ended when the catalog stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from services.errors import Overloaded


class Closable(Protocol):
    """A watch, as far as it is looked at here."""

    def close(self) -> None:
        """Ends it."""


W = TypeVar("W", bound=Closable)


class OpenWatches(Generic[W]):
    """At most so many. `of`: what they watch, for errors; `count`: is told how many there are."""

    def __init__(self, most: int, of: str, count: Callable[[int], None] = lambda number: None) -> None:
        self._most = most
        self._of = of
        self._count = count
        self._watches: set[W] = set()
        self._closed = False

    @contextmanager
    def watch(self, make: Callable[[], W]) -> Iterator[W]:
        """A watch for as long as the block runs. Raises Overloaded when there are too many."""
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
        """Those that are open."""
        return iter(self._watches)

    def close(self) -> None:
        """Ends all of them, and those to come."""
        self._closed = True
        for watch in self._watches:
            watch.close()
