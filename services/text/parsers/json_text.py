"""An incremental reader of the JSON that models write: just strict enough to find the end of a value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from services.text.parsers.reader import Emit, Reader, Reading

# The structure outside strings. `<` never occurs there; it begins the markup after a call.
_STRUCTURE = re.compile(r'["{}\[\]<]')
_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[,\]}<\s]")


def symbol(reader: Reader, char: str) -> Reading[bool]:
    """Reads optional whitespace and `char`. Returns False if `char` does not follow."""
    return (yield from reader.skip(char))


def string(reader: Reader, known: Iterable[str]) -> Reading[str | None]:
    """Reads optional whitespace and a string. Returns None if no complete string follows.

    If the answer ends within the string and no name in `known` starts with it, the text being read is not markup.
    """
    yield from reader.skip_space()
    if (yield from reader.peek()) != '"':
        return None
    pieces: list[str] = []
    if not (yield from value(reader, pieces.append)):
        reader.check_prefix(known, "".join(pieces)[1:])
        return None
    found = parsed("".join(pieces))
    return found if isinstance(found, str) else None


def value(reader: Reader, emit: Emit) -> Reading[bool]:
    """Passes a value on unchanged. Returns False if it is incomplete, at the end or before markup."""
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first == '"':
        emit((yield from reader.take(1)))
        return (yield from _rest_of_string(reader, emit))
    if first and first in "{[":
        return (yield from _nested(reader, emit))
    pieces: list[str] = []
    yield from reader.scan(_SCALAR_END, pieces.append)
    for piece in pieces:
        emit(piece)
    return bool(pieces)


def arguments(reader: Reader, emit: Emit) -> Reading[bool]:
    """Passes on a call's arguments, decoded if they are a string that holds JSON."""
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first and first in "{[":
        return (yield from value(reader, emit))
    pieces: list[str] = []
    whole = yield from value(reader, pieces.append)
    text = "".join(pieces)
    found = parsed(text) if whole else text
    emit(found if isinstance(found, str) else "{}" if found is None and text == "null" else text)
    return whole


def parsed(text: str) -> object:
    """Parses JSON text. Returns None for invalid JSON as well as for `null`."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _nested(reader: Reader, emit: Emit) -> Reading[bool]:
    depth = 0
    while char := (yield from reader.scan(_STRUCTURE, emit)):
        if char == "<":
            return False
        emit((yield from reader.take(1)))
        if char == '"':
            if not (yield from _rest_of_string(reader, emit)):
                return False
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if not depth:
                return True
    return False


def _rest_of_string(reader: Reader, emit: Emit) -> Reading[bool]:
    while char := (yield from reader.scan(_STRING, emit)):
        # A backslash and the character after it are read together.
        emit((yield from reader.take(1 if char == '"' else 2)))
        if char == '"':
            return True
    return False
