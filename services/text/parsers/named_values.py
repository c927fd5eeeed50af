"""Conversion of arguments that a dialect writes separately, as names with bare values, to a JSON object."""

from __future__ import annotations

import json

from services.text.parsers.json_text import parsed
from services.text.parsers.parser import Schema
from services.text.parsers.reader import Reader, Reading
from services.text.parsers.schema_types import ANY, STRING, properties, type_of, types

# Templates print Python values into the conversation, and models imitate them.
_PYTHON = {"True": "true", "False": "false", "None": "null"}


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
    value = parsed(bare)
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
