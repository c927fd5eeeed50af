"""JSON as a model writes it, passed on as it comes: strict enough to find where a value ends, and no stricter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from services.text.parsers.reader import Reader, Reading, Tell

# What matters between strings; `<` is never JSON's, but begins the markup behind a call.
_STRUCTURE = re.compile(r'["{}\[\]<]')
_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[,\]}<\s]")


def symbol(reader: Reader, char: str) -> Reading[bool]:
    """Reads `char`, and whitespace in front of it; says whether it was there."""
    return (yield from reader.skip(char))


def string(reader: Reader, known: Iterable[str]) -> Reading[str | None]:
    """Reads a string and whitespace in front of it; None where there is no whole one.

    `known`: one that was cut off, and that begins none of these, makes all of what is being read no markup.
    """
    yield from reader.skip_space()
    if (yield from reader.peek()) != '"':
        return None
    pieces: list[str] = []
    if not (yield from value(reader, pieces.append)):
        reader.check_begun(known, "".join(pieces)[1:])
        return None
    found = parsed("".join(pieces))
    return found if isinstance(found, str) else None


def value(reader: Reader, tell: Tell) -> Reading[bool]:
    """Passes a value on as it is written; False when it breaks off, at the end or in front of markup."""
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first == '"':
        tell((yield from reader.take(1)))
        return (yield from _rest_of_string(reader, tell))
    if first and first in "{[":
        return (yield from _nested(reader, tell))
    pieces: list[str] = []
    yield from reader.scan(_SCALAR_END, pieces.append)
    for piece in pieces:
        tell(piece)
    return bool(pieces)


def arguments(reader: Reader, tell: Tell) -> Reading[bool]:
    """Passes a call's arguments on. Those written as a string that holds JSON are taken out of it."""
    yield from reader.skip_space()
    first = yield from reader.peek()
    if first and first in "{[":
        return (yield from value(reader, tell))
    pieces: list[str] = []
    whole = yield from value(reader, pieces.append)
    text = "".join(pieces)
    found = parsed(text) if whole else text
    tell(found if isinstance(found, str) else "{}" if found is None and text == "null" else text)
    return whole


def parsed(text: str) -> object:
    """The value that JSON text stands for; None where it is not JSON, too."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _nested(reader: Reader, tell: Tell) -> Reading[bool]:
    depth = 0
    while char := (yield from reader.scan(_STRUCTURE, tell)):
        if char == "<":
            return False
        tell((yield from reader.take(1)))
        if char == '"':
            if not (yield from _rest_of_string(reader, tell)):
                return False
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if not depth:
                return True
    return False


def _rest_of_string(reader: Reader, tell: Tell) -> Reading[bool]:
    while char := (yield from reader.scan(_STRING, tell)):
        # A backslash and what it escapes belong together.
        tell((yield from reader.take(1 if char == '"' else 2)))
        if char == '"':
            return True
    return False
