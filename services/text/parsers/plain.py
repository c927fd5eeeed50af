"""The dialect of models that do not support tools: text after optional reasoning."""

from __future__ import annotations

from collections.abc import Sequence

from services.text.parsers.parser import Parser, ReadingParser, ToolShape
from services.text.parsers.reader import Reader, Reading
from services.text.parsers.reasoning import thoughts


def parser(tools: Sequence[ToolShape], *, reasoning_open: bool) -> Parser:
    """See Dialect. Never returns a call."""
    return ReadingParser(lambda reader: _read(reader, reasoning_open))


def call_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect. Empty, because the dialect has no calls."""
    return ""


def _read(reader: Reader, reasoning_open: bool) -> Reading[None]:
    yield from thoughts(reader, is_open=reasoning_open)
    yield from reader.until((), reader.content)
