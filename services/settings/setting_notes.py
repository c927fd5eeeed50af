"""Notes on every environment variable that the code reads: its default and allowed values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from services.byte_count import bytes_word
from services.settings.setting_reader import SettingReader
from services.settings.settings import read_settings

BYTES = "_BYTES"  # the suffix of settings in bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A note on one variable."""

    name: str
    default: str  # in the form of a value to set; empty: none
    allowed: str  # in Markdown
    number: bool  # whether it needs a unit


@dataclass(frozen=True)
class NotingReader(SettingReader):
    """A reader that notes every variable. If one read method calls another, the outer call's note counts."""

    notes: dict[str, Note] = field(default_factory=dict)

    def _note(self, name: str, default: object, allowed: str | tuple[object, ...]) -> None:
        number = not isinstance(default, str) and isinstance(allowed, tuple)
        if isinstance(allowed, tuple):
            words = [f"`{word}`" if isinstance(word, str) else _figure(name, word) for word in allowed]
            allowed = " to ".join(words) if number else ", ".join(words)
        self.notes.setdefault(name, Note(name, _default(default), allowed, number))


def read_notes() -> dict[str, Note]:
    """Returns notes on all variables, by name, with the defaults of an empty environment."""
    reader = NotingReader({})
    read_settings(reader)
    return reader.notes


def _default(value: object) -> str:
    """Formats a default without user-specific paths: folders are relative to ALLM_HOME or the home folder."""
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, Path):
        return str(value)
    home = Path.home() / ".allm"
    if value != home and value.is_relative_to(home):
        return f"$ALLM_HOME/{value.relative_to(home)}"
    return f"~/{value.relative_to(Path.home())}" if value.is_relative_to(Path.home()) else str(value)


def _figure(name: str, number: object) -> str:
    if not isinstance(number, int | float):
        return str(number)
    if name.endswith(BYTES):
        return bytes_word(number).replace(".0 ", " ") if number else "0"
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"
