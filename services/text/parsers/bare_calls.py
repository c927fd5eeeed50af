"""Tool calls that a model writes as plain JSON, without the marks of its dialect.

Small models do: `{"name": ..., "arguments": {...}}`, alone or in a list, bare or in a Markdown fence. An answer is such
calls only if it is nothing else, each of them names a given tool, and its arguments fit the tool's schema. Everything
else, also one word before or after it, stays text. Text is held back only while the answer can still become calls.
"""

from __future__ import annotations

import re

from services.text.conversation import CallArguments, CallEnded, CallStarted, ParsedEvent, TextDelta
from services.text.parsers.json_calls import ARGUMENTS, IGNORED, parsed_json
from services.text.parsers.json_fit import fits
from services.text.parsers.reader import SPACE, Emit, Reader, Reading
from services.text.parsers.tool_grammar import Tools, ToolShape, literal, object_schema

MAX_BARE = 64 * 1024  # characters of an answer that can be calls; a longer one is text
MAX_DEPTH = 32  # of arguments
FENCE = "```"
_KEYS = tuple(map(literal, ("name", *ARGUMENTS, *IGNORED)))
_LANGUAGE_END = re.compile(r"[^A-Za-z_]")
_LANGUAGES = frozenset({"", "json", "tool_call", "tool_code", "tool_calls"})
_NOT_SPACE = re.compile(rf"[^{SPACE}]")
_NOT_NUMBER = re.compile(r"[^-+.eE0-9]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_STRING = re.compile(r'["\\\x00-\x1f]')

Call = tuple[str, str]  # name, arguments as JSON text


class BareCalls:
    """A filter of one answer's events, after its dialect's parser: text that is calls becomes calls."""

    def __init__(self, tools: Tools) -> None:
        """`tools`: the schemas of the tools that the model may call; empty: the filter passes everything on."""
        self._reader = Reader()
        self._steps = _calls(self._reader, tools)
        self._held: list[ParsedEvent] = []
        self._size = 0  # characters
        self._holding = bool(tools)

    def passed(self, events: list[ParsedEvent]) -> list[ParsedEvent]:
        """Takes events and returns those that are now certain."""
        found: list[ParsedEvent] = []
        for event in events:
            if self._holding and isinstance(event, TextDelta):
                self._held.append(event)
                self._size += len(event.text)
                self._reader.feed(event.text)
                if self._size > MAX_BARE or self._read() is not None:
                    found += self._release()
            else:
                if self._held:  # reasoning or a call after the text
                    found += self._release()
                found.append(event)
                self._holding = self._holding and not isinstance(event, CallStarted)
        return found

    def end(self, *, cut: bool) -> list[ParsedEvent]:
        """Ends the answer and returns the remaining events. `cut`: the length limit truncated it: it is text."""
        if not self._holding or cut:
            return self._release()
        self._reader.end(cut=False)
        calls = self._read()
        if not calls:
            return self._release()
        return [event for index, call in enumerate(calls) for event in _events(index, call)]

    def _read(self) -> list[Call] | None:
        """Reads on. Returns the calls at the end of the answer, none if it has become text, and None in between."""
        try:
            next(self._steps)
        except StopIteration as end:
            calls: list[Call] = end.value
            return calls
        return None

    def _release(self) -> list[ParsedEvent]:
        held, self._held = self._held, []
        self._holding = False
        return held


def _events(index: int, call: Call) -> list[ParsedEvent]:
    name, arguments = call
    return [CallStarted(index, name), CallArguments(index, arguments), CallEnded(index)]


def _calls(reader: Reader, tools: Tools) -> Reading[list[Call]]:
    """Reads a whole answer. Returns its calls; an empty list if it is text."""
    fenced = yield from reader.skip(FENCE)
    if fenced:
        language: list[str] = []
        yield from reader.scan(_LANGUAGE_END, language.append)
        if "".join(language) not in _LANGUAGES:
            return []
    calls: list[Call] = []
    more = listed = yield from reader.skip("[")
    while more or not calls:
        call = yield from _call(reader, tools)
        if call is None:
            return []
        calls.append(call)
        more = listed and (yield from reader.skip(","))
    if listed and not (yield from reader.skip("]")):
        return []
    if fenced and not (yield from reader.skip(FENCE)):
        return []
    yield from reader.skip_space()
    return [] if (yield from reader.peek()) else calls


def _call(reader: Reader, tools: Tools) -> Reading[Call | None]:
    """Reads an object that is a call of one of the tools. Returns None for anything else."""
    names = tuple(map(literal, tools))
    keys, name, arguments = list(_KEYS), "", "{}"
    more = yield from reader.skip("{")
    while more:
        yield from reader.skip_space()
        key = (yield from reader.starts(*keys)) if keys else ""
        if not key or not (yield from reader.skip(key)) or not (yield from reader.skip(":")):
            return None
        keys.remove(key)
        if key == _KEYS[0]:
            yield from reader.skip_space()
            name = yield from reader.starts(*names)
            if not (name and (yield from reader.skip(name))):
                return None
        else:
            pieces: list[str] = []
            if not (yield from _value(reader, pieces.append, 0)):
                return None
            if key[1:-1] in ARGUMENTS:
                arguments = "".join(pieces).strip()
        more = yield from reader.skip(",")
    if not (name and (yield from reader.skip("}"))):
        return None
    return _fitting(name[1:-1], arguments, tools)


def _fitting(name: str, arguments: str, tools: Tools) -> Call | None:
    """Returns a call if its arguments fit the tool's schema. They may be a string that holds JSON, or null."""
    value = parsed_json(arguments)
    if isinstance(value, str):
        arguments, value = value, parsed_json(value)
    elif arguments == "null":
        arguments, value = "{}", {}
    schema = object_schema(ToolShape(name, None if (given := tools[name]) is None else dict(given)))
    return (name, arguments) if isinstance(value, dict) and fits(value, schema) else None


# --- JSON, read strictly: its first fault ends the waiting


def _value(reader: Reader, emit: Emit, depth: int) -> Reading[bool]:
    """Passes a value on unchanged, with the white space before it. Returns False where the text is no JSON."""
    yield from reader.scan(_NOT_SPACE, emit)
    first = yield from reader.peek()
    if first == '"':
        return (yield from _string(reader, emit))
    if first and first in "{[":
        return depth < MAX_DEPTH and (yield from _nested(reader, emit, depth))
    if word := (yield from reader.starts("true", "false", "null")):
        emit((yield from reader.take(len(word))))
        return True
    number: list[str] = []
    yield from reader.scan(_NOT_NUMBER, number.append)
    emit("".join(number))
    return bool(_NUMBER.fullmatch("".join(number)))


def _nested(reader: Reader, emit: Emit, depth: int) -> Reading[bool]:
    opener = yield from reader.take(1)
    emit(opener)
    closer = "}" if opener == "{" else "]"
    yield from reader.scan(_NOT_SPACE, emit)
    mark = yield from reader.peek()
    if mark != closer:
        mark = ","
    while mark == ",":
        if opener == "{" and not (yield from _key(reader, emit)):
            return False
        if not (yield from _value(reader, emit, depth + 1)):
            return False
        yield from reader.scan(_NOT_SPACE, emit)
        mark = yield from reader.peek()
        if mark == ",":
            emit((yield from reader.take(1)))
    if mark == closer:
        emit((yield from reader.take(1)))
    return mark == closer


def _key(reader: Reader, emit: Emit) -> Reading[bool]:
    yield from reader.scan(_NOT_SPACE, emit)
    if not (yield from _string(reader, emit)):
        return False
    yield from reader.scan(_NOT_SPACE, emit)
    colon = yield from reader.peek()
    if colon == ":":
        emit((yield from reader.take(1)))
    return colon == ":"


def _string(reader: Reader, emit: Emit) -> Reading[bool]:
    if (yield from reader.peek()) != '"':
        return False
    emit((yield from reader.take(1)))
    while (char := (yield from reader.scan(_STRING, emit))) and char in '"\\':
        # A backslash and the character after it are read together.
        emit((yield from reader.take(1 if char == '"' else 2)))
        if char == '"':
            return True
    return False
