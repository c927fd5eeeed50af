"""Dialects that write a call's arguments separately, as names with bare values between tags.

GLM 4:

<tool_call>name
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>

Qwen3-Coder and Nemotron 3:

<tool_call>
<function=name>
<parameter=key>
value
</parameter>
</function>
</tool_call>

`read_*` read an answer, `*_grammar` return the grammar that constrains one (see Dialect).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from services.text.parsers.json_calls import marked_calls, parsed_json
from services.text.parsers.reader import Reader, Reading, thoughts
from services.text.parsers.tool_grammar import (
    ANY,
    STRING,
    Schema,
    Tools,
    ToolShape,
    literal,
    marked,
    properties,
    type_of,
    types,
    value_rules,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
GLM_KEY, GLM_END_KEY = "<arg_key>", "</arg_key>"
GLM_VALUE, GLM_END_VALUE = "<arg_value>", "</arg_value>"
_GLM_NAME_END = re.compile(r"[<\n]")
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_QWEN_NAME_END = re.compile(r"[<>\n]")
# Templates print Python values into the conversation, and models imitate them.
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def glm_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect. Line breaks are optional because not all models of the family write them."""
    bodies, values = [], []
    for number, tool in enumerate(tools):
        body, rules = value_rules(tool, _glm_head, GLM_END_VALUE, f"call_value_{number}")
        bodies.append(f'{literal(tool.name)} {body} "\\n"? {literal(CLOSE)}')
        values += rules
    return "\n".join([marked(OPEN, bodies, "\n", required=required, parallel=parallel), *values])


def _glm_head(name: str) -> str:
    return f'"\\n"? {literal(f"{GLM_KEY}{name}{GLM_END_KEY}")} "\\n"? {literal(GLM_VALUE)}'


def read_glm(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    """See Dialect."""
    yield from thoughts(reader, is_open=reasoning_open)
    yield from marked_calls(reader, tools, (OPEN,), lambda _: _glm_call(reader, tools), CLOSE)


def _glm_call(reader: Reader, tools: Tools) -> Reading[bool]:
    yield from reader.skip_space()
    pieces: list[str] = []
    yield from reader.scan(_GLM_NAME_END, pieces.append)
    name = "".join(pieces).strip()
    if reader.broken_off or name not in tools:
        reader.check_prefix(tools, name)
        return False
    reader.start_call(name)
    values = NamedValues(reader, tools[name])
    while (yield from _glm_argument(reader, values)):
        pass
    if (yield from reader.starts(CLOSE)):
        values.close()
    reader.end_call()
    return True


def _glm_argument(reader: Reader, values: NamedValues) -> Reading[bool]:
    if not (yield from reader.skip(GLM_KEY)):
        return False
    pieces: list[str] = []
    if not (yield from reader.until((GLM_END_KEY,), pieces.append)):
        return False
    yield from reader.take(len(GLM_END_KEY))
    if not (yield from reader.skip(GLM_VALUE)):
        return False
    return (yield from values.read("".join(pieces).strip(), (GLM_END_VALUE,)))


def qwen_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect."""
    bodies, values = [], []
    for number, tool in enumerate(tools):
        body, rules = value_rules(tool, _qwen_head, f"\n{END_PARAMETER}\n", f"call_value_{number}")
        begin = literal(f"\n{FUNCTION}{tool.name}>\n")
        bodies.append(f"{begin} {body} {literal(f'{END_FUNCTION}{chr(10)}{CLOSE}')}")
        values += rules
    return "\n".join([marked(OPEN, bodies, "\n", required=required, parallel=parallel), *values])


def _qwen_head(name: str) -> str:
    return literal(f"{PARAMETER}{name}>\n")


def read_qwen(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    """See Dialect."""
    yield from thoughts(reader, is_open=reasoning_open)
    # Models often omit the outer tag.
    yield from marked_calls(reader, tools, (OPEN, FUNCTION), lambda opener: _qwen_call(reader, tools, opener), CLOSE)


def _qwen_call(reader: Reader, tools: Tools, opener: str) -> Reading[bool]:
    if opener == OPEN and not (yield from reader.skip(FUNCTION)):
        return False
    name, whole = yield from _qwen_name(reader)
    if not whole or name not in tools:
        reader.check_prefix(tools, name)
        return False
    reader.start_call(name)
    values = NamedValues(reader, tools[name])
    while (yield from _qwen_parameter(reader, values)):
        pass
    # A missing end tag is accepted.
    if (yield from reader.skip(END_FUNCTION)) or (yield from reader.starts(CLOSE)):
        values.close()
    reader.end_call()
    return True


def _qwen_parameter(reader: Reader, values: NamedValues) -> Reading[bool]:
    if not (yield from reader.skip(PARAMETER)):
        return False
    name, whole = yield from _qwen_name(reader)
    if not whole:
        return False
    if (yield from reader.starts("\n")):
        yield from reader.take(1)
    return (yield from values.read(name, (f"\n{END_PARAMETER}", END_PARAMETER)))


def _qwen_name(reader: Reader) -> Reading[tuple[str, bool]]:
    """Reads a name up to and including `>`. Returns the name, and False if there is no `>`."""
    pieces: list[str] = []
    whole = (yield from reader.scan(_QWEN_NAME_END, pieces.append)) == ">"
    yield from reader.take(int(whole))
    return "".join(pieces).strip(), whole


class NamedValues:
    """The arguments of the call that a reader has started last. String values are emitted incrementally."""

    def __init__(self, reader: Reader, schema: Schema | None) -> None:
        self._reader = reader
        self._root = schema or {}
        self._properties = properties(schema)
        self._begun = False

    def read(self, name: str, ends: tuple[str, ...]) -> Reading[bool]:
        """Reads the value of argument `name` up to and including one of `ends`. Returns False if no end follows."""
        allowed = types(self._properties.get(name), self._root)
        self._reader.arguments(f"{', ' if self._begun else '{'}{_quoted(name)}: ")
        self._begun = True
        pieces: list[str] = []
        if allowed == STRING:
            self._reader.arguments('"')
            end = yield from self._reader.until(ends, lambda text: self._reader.arguments(_quoted(text)[1:-1]))
            self._reader.arguments('"' if end else "")
        else:
            end = yield from self._reader.until(ends, pieces.append)
            text = "".join(pieces)
            self._reader.arguments(as_json(text, allowed) if end else text)
        yield from self._reader.take(len(end))
        return bool(end)

    def close(self) -> None:
        """Closes the JSON object after the last argument."""
        self._reader.arguments("}" if self._begun else "{}")


def as_json(text: str, allowed: frozenset[str]) -> str:
    """Converts a bare value to JSON text. It becomes a string if the schema allows strings and not its JSON type."""
    bare = text.strip()
    bare = _PYTHON.get(bare, bare)
    value = parsed_json(bare)
    if value is None and bare != "null":
        return _quoted(text)
    kind = type_of(value)
    if "string" not in allowed or _fits(kind, value, allowed):
        return bare
    return _quoted(text)


def _fits(kind: str, value: object, allowed: frozenset[str]) -> bool:
    if kind == "string":
        # Quotes are part of the text where a bare string is allowed, unless the schema allows any type.
        return allowed == ANY
    if kind == "integer" or (isinstance(value, float) and value.is_integer()):
        return bool(allowed & {"integer", "number"})
    return kind in allowed


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
