"""The tool call format of GLM 4, with bare values:

<tool_call>name
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from services.text.parsers import lark
from services.text.parsers.call_object import marked_calls
from services.text.parsers.named_values import NamedValues
from services.text.parsers.parser import Parser, ReadingParser, Tools, ToolShape, by_name
from services.text.parsers.reader import Reader, Reading
from services.text.parsers.reasoning import thoughts

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"
_NAME_END = re.compile(r"[<\n]")


def parser(tools: Sequence[ToolShape], *, reasoning_open: bool) -> Parser:
    """See Dialect."""
    return ReadingParser(lambda reader: _read(reader, by_name(tools), reasoning_open))


def call_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect. Line breaks are optional because not all models of the family write them."""
    bodies, values = [], []
    for number, tool in enumerate(tools):
        body, rules = lark.named_values(tool, _head, END_VALUE, f"call_value_{number}")
        bodies.append(f'{lark.literal(tool.name)} {body} "\\n"? {lark.literal(CLOSE)}')
        values += rules
    return "\n".join([lark.marked(OPEN, bodies, "\n", required=required, parallel=parallel), *values])


def _head(name: str) -> str:
    return f'"\\n"? {lark.literal(f"{KEY}{name}{END_KEY}")} "\\n"? {lark.literal(VALUE)}'


def _read(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    yield from thoughts(reader, is_open=reasoning_open)
    yield from marked_calls(reader, tools, (OPEN,), lambda _: _call(reader, tools), CLOSE)


def _call(reader: Reader, tools: Tools) -> Reading[bool]:
    yield from reader.skip_space()
    pieces: list[str] = []
    yield from reader.scan(_NAME_END, pieces.append)
    name = "".join(pieces).strip()
    if reader.broken_off or name not in tools:
        reader.check_prefix(tools, name)
        return False
    reader.start_call(name)
    values = NamedValues(reader, tools[name])
    while (yield from _argument(reader, values)):
        pass
    if (yield from reader.starts(CLOSE)):
        values.close()
    reader.end_call()
    return True


def _argument(reader: Reader, values: NamedValues) -> Reading[bool]:
    if not (yield from reader.skip(KEY)):
        return False
    pieces: list[str] = []
    if not (yield from reader.until((END_KEY,), pieces.append)):
        return False
    yield from reader.take(len(END_KEY))
    if not (yield from reader.skip(VALUE)):
        return False
    return (yield from values.read("".join(pieces).strip(), (END_VALUE,)))
