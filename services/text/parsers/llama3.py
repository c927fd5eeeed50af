"""The tool call format of Llama 3: `{"name": ..., "parameters": {...}}`, optionally after `<|python_tag|>`."""

from __future__ import annotations

from collections.abc import Sequence

from services.text.parsers import lark
from services.text.parsers.call_object import call_object, marked_calls
from services.text.parsers.parser import Parser, ReadingParser, Tools, ToolShape, by_name
from services.text.parsers.reader import MIN_MARK, Reader, Reading
from services.text.parsers.reasoning import thoughts

TAG = "<|python_tag|>"
# The optional separator between two calls.
SEPARATOR = ";"


def parser(tools: Sequence[ToolShape], *, reasoning_open: bool) -> Parser:
    """See Dialect."""
    return ReadingParser(lambda reader: _read(reader, by_name(tools), reasoning_open))


def call_grammar(tools: Sequence[ToolShape], *, required: bool, parallel: bool) -> str:
    """See Dialect."""
    rules = [f"call_body: {' | '.join(f'call_{number}' for number in range(len(tools)))}"]
    rules += [f"call_{number}: {lark.call_object(tool, 'parameters')}" for number, tool in enumerate(tools)]
    calls = f"call_body ({lark.literal(SEPARATOR + ' ')} call_body)*" if parallel else "call_body"
    if required:
        return "\n".join([f"start: {calls}", *rules])
    # Without a mark, only the first character distinguishes a call from text.
    return "\n".join([f"start: {calls} | call_prose", r"call_prose: /(\s*[^{\s](?s:.*))?/", *rules])


def _read(reader: Reader, tools: Tools, reasoning_open: bool) -> Reading[None]:
    yield from thoughts(reader, is_open=reasoning_open)
    if tools:
        reader.hold()
        yield from reader.skip(TAG)
        called = yield from _calls(reader, tools)
        if reader.broken_off and (called or len(reader.held) >= MIN_MARK):
            reader.drop()
        elif not called:
            reader.back()
    yield from marked_calls(reader, tools, (TAG,), lambda _: _calls(reader, tools))


def _calls(reader: Reader, tools: Tools) -> Reading[bool]:
    """Reads one or more consecutive calls."""
    if not (yield from call_object(reader, tools)):
        return False
    while True:
        reader.hold()
        yield from reader.skip(SEPARATOR)
        yield from reader.skip(TAG)
        if not (yield from call_object(reader, tools)):
            reader.back()
            return True
