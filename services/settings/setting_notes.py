"""What is read from the environment: every variable with its default and what is allowed, as the code reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from services.byte_count import bytes_word
from services.settings.setting_reader import SettingReader
from services.settings.settings import read_settings

BYTES = "_BYTES"  # how the names of sizes end


@dataclass(frozen=True, slots=True)
class Note:
    """One variable."""

    name: str
    default: str  # as it could be set; empty: nothing is set
    allowed: str  # in Markdown
    number: bool  # whether it needs a unit


@dataclass(frozen=True)
class NotingReader(SettingReader):
    """Notes what is asked of its environment. Where one way of reading uses another, what the first tells counts."""

    notes: dict[str, Note] = field(default_factory=dict)

    def _note(self, name: str, default: object, allowed: str | tuple[object, ...]) -> None:
        number = not isinstance(default, str) and isinstance(allowed, tuple)
        if isinstance(allowed, tuple):
            words = [f"`{word}`" if isinstance(word, str) else _figure(name, word) for word in allowed]
            allowed = " to ".join(words) if number else ", ".join(words)
        self.notes.setdefault(name, Note(name, _default(default), allowed, number))


def read_notes() -> dict[str, Note]:
    """All variables that are read, by name, as they are where none is set."""
    reader = NotingReader({})
    read_settings(reader)
    return reader.notes


def _default(value: object) -> str:
    """The same for everybody: folders are told by ALLM_HOME, or by the home folder."""
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
