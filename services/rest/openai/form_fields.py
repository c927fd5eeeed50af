"""The fields of a multipart form as typed parameters. All values come as text; arrays and objects use brackets.

`name[]`, sent once for each element, is an array, and so is a repeated `name`; `name[key]` is a member of an object,
which may also come as one JSON text. An empty value or `null` counts as missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from services.errors import InvalidRequest

T = TypeVar("T")

_NOTHING = ("", "null")
_SWITCH = {"true": True, "1": True, "false": False, "0": False}


class FormFields:
    """The fields of one form. An invalid value raises InvalidRequest, with `param`."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self._values.setdefault(name, []).append(value)

    def text(self, name: str) -> str:
        """Returns a text unchanged; "" if missing."""
        values = self._values.get(name, [])
        if len(values) > 1:
            raise InvalidRequest(f"'{name}' is given {len(values)} times; once is allowed.", param=name)
        return values[0] if values else ""

    def choice(self, name: str, allowed: Sequence[T], default: T) -> T:
        """Returns one of the allowed words."""
        value = self._given(name)
        if value is None:
            return default
        for word in allowed:
            if value == word:
                return word
        raise _not(name, value, f"one of {', '.join(map(str, allowed))}")

    def number(self, name: str) -> float | None:
        """Returns a finite number."""
        value = self._given(name)
        if value is None:
            return None
        try:
            number = math.nan if "_" in value else float(value)  # only Python accepts `1_0`
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise _not(name, value, "a number")
        return number

    def integer(self, name: str) -> int | None:
        """Returns a whole number; accepts `5.0`, which some clients send."""
        number = self.number(name)
        if number is None:
            return None
        if number != int(number) or abs(number) > 2**53:
            raise _not(name, self.text(name), "a whole number")
        return int(number)

    def switch(self, name: str) -> bool | None:
        """Returns True or False; None if missing."""
        value = self._given(name)
        if value is None:
            return None
        if value.lower() not in _SWITCH:
            raise _not(name, value, "'true' or 'false'")
        return _SWITCH[value.lower()]

    def array(self, name: str) -> list[str]:
        """Returns the elements of an array of texts; empty if missing."""
        return [value for key in (name, f"{name}[]") for value in self._values.get(key, []) if value not in _NOTHING]

    def members(self, name: str) -> dict[str, str] | str | None:
        """Returns an object's members as text; a plain text if one was sent instead; None if missing."""
        inside = {
            key[len(name) + 1 : -1]: self.text(key)
            for key in self._values
            if key.startswith(f"{name}[") and key.endswith("]")
        }
        value = self._given(name)
        if inside and value is not None:
            raise InvalidRequest(f"'{name}' is given as a whole and in parts.", param=name)
        if value is None or not value.lstrip().startswith("{"):
            return inside or value
        return _object(name, value)

    def _given(self, name: str) -> str | None:
        value = self.text(name).strip()
        return None if value in _NOTHING else value


def _object(name: str, text: str) -> dict[str, str]:
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not(name, text, "a JSON object") from error
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in found.items()
        if value is not None
    }


def _not(name: str, value: str, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"'{name}' must be {allowed}, not {value[:40]!r}.", param=name)
