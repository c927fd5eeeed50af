"""Arguments that a dialect writes one by one, as names with bare values: from these to a JSON object."""

from __future__ import annotations

import json

from services.text.parsers.json_text import parsed
from services.text.parsers.reader import Reader, Reading
from services.text.parsers.schema_types import ANY, STRING, properties, type_of, types
from services.text.parsers.tool_shape import Schema

# Templates print values of Python's into the conversation, and models repeat them.
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class NamedValues:
    """The arguments of the call that a reader has started last. Texts of strings are told as they come."""

    def __init__(self, reader: Reader, schema: Schema | None) -> None:
        self._reader = reader
        self._root = schema or {}
        self._properties = properties(schema)
        self._begun = False

    def read(self, name: str, ends: tuple[str, ...]) -> Reading[bool]:
        """Reads the value of argument `name` up to one of `ends`, which it reads over; False when none comes."""
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
        """No more arguments come."""
        self._reader.arguments("}" if self._begun else "{}")


def as_json(text: str, allowed: frozenset[str]) -> str:
    """The JSON text of a bare value: what is none of the types that are allowed stays a string."""
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
        # Quotes belong to the text where a string may stand bare, unless nothing says what may stand there.
        return allowed == ANY
    if kind == "integer" or (isinstance(value, float) and value.is_integer()):
        return bool(allowed & {"integer", "number"})
    return kind in allowed


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
