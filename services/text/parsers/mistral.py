"""The tool call format of the Mistral models, after `[TOOL_CALLS]`: `name[ARGS]{...}`, or in older ones a JSON list."""

from __future__ import annotations

import re
from collections.abc import Sequence

from services.text.parsers import json_text, lark
from services.text.parsers.call_object import call_objects, marked_calls
from services.text.parsers.parser import Parser, ReadingParser, Tools, ToolShape, by_name
from services.text.parsers.reader import Reader, Reading
from services.text.parsers.reasoning import thoughts

OPEN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME_END = re.compile(r"[\[{\s]")
_ID_END = re.compile(r"[\[{]")


def parser(tools: Sequence[ToolShape], *, reasoning_open: bool) -> Parser:
    """See Dialect. Reads both forms."""
    return ReadingParser(lambda reader: _read(reader, by_name(tools), reasoning_open))


def call_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect. The form with `[ARGS]`."""
    bodies = [f"{lark.literal(tool.name + ARGS)} {lark.arguments(tool)}" for tool in tools]
    return lark.marked(OPEN, bodies, "", required=required, parallel=parallel)


def list_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect. The list form."""
    bodies = [lark.call_object(tool, "arguments") for tool in tools]
    return lark.listed(OPEN, "", bodies, required=required, parallel=parallel)


def _read(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    yield from thoughts(reader, is_open=reasoning_open, opener="[THINK]")
    yield from marked_calls(reader, tools, (OPEN,), lambda _: _call(reader, tools))


def _call(reader: Reader, tools: Tools) -> Reading[bool]:
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first and first in "[{":
        return (yield from call_objects(reader, tools))
    name: list[str] = []
    yield from reader.scan(_NAME_END, name.append)
    if reader.broken_off or "".join(name) not in tools:
        reader.check_prefix(tools, "".join(name))
        return False
    reader.start_call("".join(name))
    if (yield from reader.skip(CALL_ID)):
        yield from reader.scan(_ID_END, lambda _: None)
    yield from reader.skip(ARGS)
    yield from reader.skip_space()
    if (yield from reader.peek()) == "{":
        yield from json_text.value(reader, reader.arguments)
    reader.end_call()
    return True
