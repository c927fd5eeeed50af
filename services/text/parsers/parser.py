"""What turns an answer's text into events, and how the parsers of all dialects are driven.

A dialect is read by a generator: it takes what it needs from a Reader and yields where it needs more text. So it is
written as if the whole text were there, and how the text was cut cannot matter to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from services.text.parsers.events import Event
from services.text.parsers.reader import Reader, Reading


class Parser(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[Event]:
        """Takes more text; returns what has become certain."""
        ...

    def finish(self, *, cut: bool = False) -> list[Event]:
        """No more text comes: returns what was held back. A call that broke off is told as far as it came.

        `cut`: the answer was cut off by its length. Markup that has only begun is then no text, and not told.
        """
        ...


class ReadingParser:
    """A parser that runs a dialect's generator."""

    def __init__(self, read: Callable[[Reader], Reading[None]]) -> None:
        self._reader = Reader()
        self._steps = read(self._reader)

    def push(self, text: str) -> list[Event]:
        """See Parser."""
        self._reader.feed(text)
        next(self._steps, None)
        return self._reader.take_events()

    def finish(self, *, cut: bool = False) -> list[Event]:
        """See Parser."""
        self._reader.end(cut=cut)
        for _ in self._steps:
            pass
        self._reader.flush()
        return self._reader.take_events()
