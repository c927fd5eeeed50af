"""Calls as JSON objects, `{"name": ..., "arguments": {...}}`, alone, in a list, or each after an opening mark: the core
of most dialects.
"""

from __future__ import annotations

from collections.abc import Callable

from services.text.parsers import json_text
from services.text.parsers.parser import Tools
from services.text.parsers.reader import Reader, Reading

ARGUMENTS = ("arguments", "parameters")
# Keys that models add and that are ignored.
_IGNORED = ("type", "id")
_KEYS = ("name", *ARGUMENTS, *_IGNORED)


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
    if not (yield from json_text.symbol(reader, "[")):
        return (yield from call_object(reader, tools))
    if not (yield from call_object(reader, tools)):
        return False
    while True:
        reader.hold()
        if (yield from json_text.symbol(reader, "]")):
            reader.release()
            return True
        if not (yield from json_text.symbol(reader, ",")) or not (yield from call_object(reader, tools)):
            reader.back()
            return True


def call_object(reader: Reader, tools: Tools) -> Reading[bool]:
    """Reads exactly one call. Returns False, without an event, if the text is not a call."""
    if not (yield from json_text.symbol(reader, "{")):
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
            key = yield from json_text.string(self._reader, _KEYS)
            if key is None or not (yield from json_text.symbol(self._reader, ":")):
                break
            if not (yield from self._entry(key)):
                break
            going = yield from json_text.symbol(self._reader, ",")
        whole = not going and (yield from json_text.symbol(self._reader, "}"))
        if self._started:
            if whole and self._arguments is None:
                self._reader.arguments("{}")
            self._reader.end_call()
        return self._started

    def _entry(self, key: str) -> Reading[bool]:
        if key == "name" and not self._started:
            name = yield from json_text.string(self._reader, self._tools)
            if name is None or name not in self._tools:
                return False
            self._start(name)
            return True
        if key in ARGUMENTS and self._arguments is None:
            self._arguments = []
            return (yield from json_text.arguments(self._reader, self._emit))
        if key in _IGNORED:
            return (yield from json_text.value(self._reader, lambda _: None))
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
