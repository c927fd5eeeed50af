"""Dialects that write a call as a JSON object, `{"name": ..., "arguments": {...}}`: alone, in a list, or each
after a mark.

    Hermes, Qwen   <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    Llama 3        {"name": ..., "parameters": {...}}, optionally after <|python_tag|>
    Mistral        [TOOL_CALLS]name[ARGS]{...}, in older models [TOOL_CALLS] and a JSON list
    Nemotron       <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>

`read_*` read an answer, `*_grammar` return the grammar that constrains one (see Dialect).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence

from services.text.parsers.reader import MIN_MARK, Emit, Reader, Reading, thoughts
from services.text.parsers.tool_grammar import (
    Tools,
    ToolShape,
    arguments_rule,
    call_rule,
    listed,
    literal,
    marked,
    numbered,
)

ARGUMENTS = ("arguments", "parameters")
# Keys that models add and that are ignored.
IGNORED = ("type", "id")
_KEYS = ("name", *ARGUMENTS, *IGNORED)

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
NEMOTRON_OPEN, NEMOTRON_CLOSE = "<TOOLCALL>", "</TOOLCALL>"
LLAMA3_TAG = "<|python_tag|>"
# The optional separator between two calls.
LLAMA3_SEPARATOR = ";"
MISTRAL_OPEN, MISTRAL_ARGS, MISTRAL_CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_MISTRAL_NAME_END = re.compile(r"[\[{\s]")
_MISTRAL_ID_END = re.compile(r"[\[{]")
# The structure of JSON outside strings. `<` never occurs there; it begins the markup after a call.
_STRUCTURE = re.compile(r'["{}\[\]<]')
_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[,\]}<\s]")


def hermes_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect."""
    bodies = [f'"\\n" {call_rule(tool, "arguments")} {literal(chr(10) + HERMES_CLOSE)}' for tool in tools]
    return marked(HERMES_OPEN, bodies, "\n", required=required, parallel=parallel)


def read_hermes(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    """See Dialect."""
    yield from thoughts(reader, is_open=reasoning_open)
    yield from marked_calls(reader, tools, (HERMES_OPEN,), lambda _: call_objects(reader, tools), HERMES_CLOSE)


def nemotron_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect."""
    bodies = [call_rule(tool, "arguments") for tool in tools]
    return listed(NEMOTRON_OPEN, NEMOTRON_CLOSE, bodies, required=required, parallel=parallel)


def read_nemotron(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    """See Dialect."""
    yield from thoughts(reader, is_open=reasoning_open)
    yield from marked_calls(reader, tools, (NEMOTRON_OPEN,), lambda _: call_objects(reader, tools), NEMOTRON_CLOSE)


def llama3_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect."""
    rules = numbered("call_body", [call_rule(tool, "parameters") for tool in tools])
    calls = f"call_body ({literal(LLAMA3_SEPARATOR + ' ')} call_body)*" if parallel else "call_body"
    if required:
        return "\n".join([f"start: {calls}", *rules])
    # Without a mark, only the first character distinguishes a call from text.
    return "\n".join([f"start: {calls} | call_prose", r"call_prose: /(\s*[^{\s](?s:.*))?/", *rules])


def read_llama3(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    """See Dialect."""
    yield from thoughts(reader, is_open=reasoning_open)
    if tools:
        reader.hold()
        yield from reader.skip(LLAMA3_TAG)
        called = yield from _llama3_calls(reader, tools)
        if reader.broken_off and (called or len(reader.held) >= MIN_MARK):
            reader.drop()
        elif not called:
            reader.back()
    yield from marked_calls(reader, tools, (LLAMA3_TAG,), lambda _: _llama3_calls(reader, tools))


def _llama3_calls(reader: Reader, tools: Tools) -> Reading[bool]:
    """Reads one or more consecutive calls."""
    if not (yield from call_object(reader, tools)):
        return False
    while True:
        reader.hold()
        yield from reader.skip(LLAMA3_SEPARATOR)
        yield from reader.skip(LLAMA3_TAG)
        if not (yield from call_object(reader, tools)):
            reader.back()
            return True


def mistral_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect. The form with `[ARGS]`."""
    bodies = [f"{literal(tool.name + MISTRAL_ARGS)} {arguments_rule(tool)}" for tool in tools]
    return marked(MISTRAL_OPEN, bodies, "", required=required, parallel=parallel)


def mistral_list_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect. The list form."""
    bodies = [call_rule(tool, "arguments") for tool in tools]
    return listed(MISTRAL_OPEN, "", bodies, required=required, parallel=parallel)


def read_mistral(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    """See Dialect. Reads both forms."""
    yield from thoughts(reader, is_open=reasoning_open, opener="[THINK]")
    yield from marked_calls(reader, tools, (MISTRAL_OPEN,), lambda _: _mistral_call(reader, tools))


def _mistral_call(reader: Reader, tools: Tools) -> Reading[bool]:
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first and first in "[{":
        return (yield from call_objects(reader, tools))
    name: list[str] = []
    yield from reader.scan(_MISTRAL_NAME_END, name.append)
    if reader.broken_off or "".join(name) not in tools:
        reader.check_prefix(tools, "".join(name))
        return False
    reader.start_call("".join(name))
    if (yield from reader.skip(MISTRAL_CALL_ID)):
        yield from reader.scan(_MISTRAL_ID_END, lambda _: None)
    yield from reader.skip(MISTRAL_ARGS)
    yield from reader.skip_space()
    if (yield from reader.peek()) == "{":
        yield from _json_value(reader, reader.arguments)
    reader.end_call()
    return True


def marked_calls(
    reader: Reader, tools: Tools, openers: tuple[str, ...], call: Callable[[str], Reading[bool]], closer: str = ""
) -> Reading[None]:
    """Reads to the end of the answer: text is content, and `call` reads after each of `openers`.

    Without tools everything is content. `call` gets the opener and returns True if it read a call; otherwise the opener
    is content and reading continues after it. `closer` is skipped after a call. Markup truncated by the end is dropped.
    """
    while opener := (yield from reader.until(openers if tools else (), reader.content)):
        reader.hold()
        yield from reader.take(len(opener))
        called = yield from call(opener)
        if called and closer:
            yield from reader.skip(closer)
        if reader.broken_off:
            reader.drop()
        elif not called:
            reader.back()
            reader.content((yield from reader.take(len(opener))))


def call_objects(reader: Reader, tools: Tools) -> Reading[bool]:
    """Reads one call, or a list of calls. Returns False, without an event, if the text is not a call."""
    if not (yield from reader.skip("[")):
        return (yield from call_object(reader, tools))
    if not (yield from call_object(reader, tools)):
        return False
    while True:
        reader.hold()
        if (yield from reader.skip("]")):
            reader.release()
            return True
        if not (yield from reader.skip(",")) or not (yield from call_object(reader, tools)):
            reader.back()
            return True


def call_object(reader: Reader, tools: Tools) -> Reading[bool]:
    """Reads exactly one call. Returns False, without an event, if the text is not a call."""
    if not (yield from reader.skip("{")):
        return False
    return (yield from _CallObject(reader, tools).read())


class _CallObject:
    def __init__(self, reader: Reader, tools: Tools) -> None:
        self._reader = reader
        self._tools = tools
        self._started = False
        self._arguments: list[str] | None = None  # None: none seen; buffers those read before the name

    def read(self) -> Reading[bool]:
        going = True
        while going:
            key = yield from _json_string(self._reader, _KEYS)
            if key is None or not (yield from self._reader.skip(":")):
                break
            if not (yield from self._entry(key)):
                break
            going = yield from self._reader.skip(",")
        whole = not going and (yield from self._reader.skip("}"))
        if self._started:
            if whole and self._arguments is None:
                self._reader.arguments("{}")
            self._reader.end_call()
        return self._started

    def _entry(self, key: str) -> Reading[bool]:
        if key == "name" and not self._started:
            name = yield from _json_string(self._reader, self._tools)
            if name is None or name not in self._tools:
                return False
            self._start(name)
            return True
        if key in ARGUMENTS and self._arguments is None:
            self._arguments = []
            return (yield from _json_arguments(self._reader, self._emit))
        if key in IGNORED:
            return (yield from _json_value(self._reader, lambda _: None))
        return False

    def _start(self, name: str) -> None:
        self._reader.start_call(name)
        self._started = True
        for text in self._arguments or ():
            self._reader.arguments(text)

    def _emit(self, text: str) -> None:
        if self._started:
            self._reader.arguments(text)
        elif self._arguments is not None:
            self._arguments.append(text)


# --- JSON, read as strictly as it takes to find the end of a value


def _json_string(reader: Reader, known: Iterable[str]) -> Reading[str | None]:
    """Reads optional whitespace and a string. Returns None if no complete string follows.

    If the answer ends within the string and no name in `known` starts with it, the text being read is not markup.
    """
    yield from reader.skip_space()
    if (yield from reader.peek()) != '"':
        return None
    pieces: list[str] = []
    if not (yield from _json_value(reader, pieces.append)):
        reader.check_prefix(known, "".join(pieces)[1:])
        return None
    found = parsed_json("".join(pieces))
    return found if isinstance(found, str) else None


def _json_value(reader: Reader, emit: Emit) -> Reading[bool]:
    """Passes a value on unchanged. Returns False if it is incomplete, at the end or before markup."""
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first == '"':
        emit((yield from reader.take(1)))
        return (yield from _json_rest_of_string(reader, emit))
    if first and first in "{[":
        return (yield from _json_nested(reader, emit))
    pieces: list[str] = []
    yield from reader.scan(_SCALAR_END, pieces.append)
    for piece in pieces:
        emit(piece)
    return bool(pieces)


def _json_arguments(reader: Reader, emit: Emit) -> Reading[bool]:
    """Passes on a call's arguments, decoded if they are a string that holds JSON."""
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first and first in "{[":
        return (yield from _json_value(reader, emit))
    pieces: list[str] = []
    whole = yield from _json_value(reader, pieces.append)
    text = "".join(pieces)
    found = parsed_json(text) if whole else text
    emit(found if isinstance(found, str) else "{}" if found is None and text == "null" else text)
    return whole


def parsed_json(text: str) -> object:
    """Parses JSON text. Returns None for invalid JSON as well as for `null`."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _json_nested(reader: Reader, emit: Emit) -> Reading[bool]:
    depth = 0
    while char := (yield from reader.scan(_STRUCTURE, emit)):
        if char == "<":
            return False
        emit((yield from reader.take(1)))
        if char == '"':
            if not (yield from _json_rest_of_string(reader, emit)):
                return False
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if not depth:
                return True
    return False


def _json_rest_of_string(reader: Reader, emit: Emit) -> Reading[bool]:
    while char := (yield from reader.scan(_STRING, emit)):
        # A backslash and the character after it are read together.
        emit((yield from reader.take(1 if char == '"' else 2)))
        if char == '"':
            return True
    return False
