"""The tool call format of Nemotron: `<TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>`."""

from __future__ import annotations

from collections.abc import Sequence

from services.text.parsers import lark
from services.text.parsers.call_object import call_objects, marked_calls
from services.text.parsers.parser import Parser, ReadingParser, Tools, ToolShape, by_name
from services.text.parsers.reader import Reader, Reading
from services.text.parsers.reasoning import thoughts

OPEN, CLOSE = "<TOOLCALL>", "</TOOLCALL>"


def parser(tools: Sequence[ToolShape], *, reasoning_open: bool) -> Parser:
    """See Dialect."""
    return ReadingParser(lambda reader: _read(reader, by_name(tools), reasoning_open))


def call_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect."""
    bodies = [lark.call_object(tool, "arguments") for tool in tools]
    return lark.listed(OPEN, CLOSE, bodies, required=required, parallel=parallel)


def _read(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    yield from thoughts(reader, is_open=reasoning_open)
    yield from marked_calls(reader, tools, (OPEN,), lambda _: call_objects(reader, tools), CLOSE)
