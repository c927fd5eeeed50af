"""The tool call format of Qwen3-Coder and Nemotron 3, with bare values:

<tool_call>
<function=name>
<parameter=key>
value
</parameter>
</function>
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
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_NAME_END = re.compile(r"[<>\n]")


def parser(tools: Sequence[ToolShape], *, reasoning_open: bool) -> Parser:
    """See Dialect."""
    return ReadingParser(lambda reader: _read(reader, by_name(tools), reasoning_open))


def call_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect."""
    bodies, values = [], []
    for number, tool in enumerate(tools):
        body, rules = lark.named_values(tool, _head, f"\n{END_PARAMETER}\n", f"call_value_{number}")
        begin = lark.literal(f"\n{FUNCTION}{tool.name}>\n")
        bodies.append(f"{begin} {body} {lark.literal(f'{END_FUNCTION}{chr(10)}{CLOSE}')}")
        values += rules
    return "\n".join([lark.marked(OPEN, bodies, "\n", required=required, parallel=parallel), *values])


def _head(name: str) -> str:
    return lark.literal(f"{PARAMETER}{name}>\n")


def _read(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    yield from thoughts(reader, is_open=reasoning_open)
    # Models often omit the outer tag.
    yield from marked_calls(reader, tools, (OPEN, FUNCTION), lambda opener: _call(reader, tools, opener), CLOSE)


def _call(reader: Reader, tools: Tools, opener: str) -> Reading[bool]:
    if opener == OPEN and not (yield from reader.skip(FUNCTION)):
        return False
    name, whole = yield from _name(reader)
    if not whole or name not in tools:
        reader.check_prefix(tools, name)
        return False
    reader.start_call(name)
    values = NamedValues(reader, tools[name])
    while (yield from _parameter(reader, values)):
        pass
    # A missing end tag is accepted.
    if (yield from reader.skip(END_FUNCTION)) or (yield from reader.starts(CLOSE)):
        values.close()
    reader.end_call()
    return True


def _parameter(reader: Reader, values: NamedValues) -> Reading[bool]:
    if not (yield from reader.skip(PARAMETER)):
        return False
    name, whole = yield from _name(reader)
    if not whole:
        return False
    if (yield from reader.starts("\n")):
        yield from reader.take(1)
    return (yield from values.read(name, (f"\n{END_PARAMETER}", END_PARAMETER)))


def _name(reader: Reader) -> Reading[tuple[str, bool]]:
    """Reads a name up to and including `>`. Returns the name, and False if there is no `>`."""
    pieces: list[str] = []
    whole = (yield from reader.scan(_NAME_END, pieces.append)) == ">"
    yield from reader.take(int(whole))
    return "".join(pieces).strip(), whole
