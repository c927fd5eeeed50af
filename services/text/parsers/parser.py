"""The parser interface, and the driver of the parsers of all dialects.

A dialect's parser is a generator: it reads from a Reader and yields when it needs more text. So it is written as if the
whole text were available, and its result cannot depend on how the text was split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.text.parsers.events import ParsedEvent
from services.text.parsers.reader import Reader, Reading

Schema = Mapping[str, Any]
# Schemas of the arguments, by tool name.
Tools = Mapping[str, "Schema | None"]


@dataclass(frozen=True, slots=True)
class ToolShape:
    """A tool's name and the JSON Schema of its arguments; None means no arguments."""

    name: str
    schema: dict[str, Any] | None


def by_name(shapes: Sequence[ToolShape]) -> Tools:
    """Maps tool names to schemas."""
    return {shape.name: shape.schema for shape in shapes}


class Parser(Protocol):
    """An incremental parser of one answer."""

    def push(self, text: str) -> list[ParsedEvent]:
        """Adds text and returns the events that are now certain."""
        ...

    def finish(self, *, cut: bool = False) -> list[ParsedEvent]:
        """Ends the text and returns the remaining events. An incomplete call is returned as far as it was read.

        `cut`: the length limit truncated the answer. Incomplete markup at its end is then dropped instead of becoming
        text.
        """
        ...


class ReadingParser:
    """A parser that runs a dialect's generator."""

    def __init__(self, read: Callable[[Reader], Reading[None]]) -> None:
        self._reader = Reader()
        self._steps = read(self._reader)

    def push(self, text: str) -> list[ParsedEvent]:
        """See Parser."""
        self._reader.feed(text)
        next(self._steps, None)
        return self._reader.take_events()

    def finish(self, *, cut: bool = False) -> list[ParsedEvent]:
        """See Parser."""
        self._reader.end(cut=cut)
        for _ in self._steps:
            pass
        self._reader.flush()
        return self._reader.take_events()
