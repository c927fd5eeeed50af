"""The commands' output: short words, tables and colours on a terminal, aligned text elsewhere, and JSON for scripts.

JSON has the field names of the protos, enums as lower-case words, and numbers as numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from allm.models.v1 import model_pb2
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\s]+")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def enum_word(kind: EnumDescriptor, value: int) -> str:
    """Returns `MODEL_STATE_READY` as `ready`; a value unknown to this version as its number."""
    known = kind.values_by_number.get(value)
    if known is None:
        return str(value)
    prefix = _CAPITAL.sub("_", kind.name).upper() + "_"
    return known.name.removeprefix(prefix).lower()


def state_word(state: int) -> str:
    """Returns a state's word, such as `ready`."""
    return enum_word(model_pb2.ModelState.DESCRIPTOR, state)


def format_word(format: int) -> str:
    """Returns a format's word, such as `gguf`."""
    return enum_word(model_pb2.Format.DESCRIPTOR, format)


def modality_word(modality: int) -> str:
    """Returns a modality's word, such as `text`."""
    return enum_word(model_pb2.Modality.DESCRIPTOR, modality)


def reason_word(reason: str, model_id: str) -> str:
    """Returns a reason without a leading model id, which has just been printed."""
    return reason.removeprefix(f"{model_id}: ")


def one_line(text: str) -> str:
    """Returns text on one line, without terminal control characters."""
    return _CONTROL.sub(" ", text).strip()


def shorten(text: str, width: int) -> str:
    """Cuts a text to `width` characters, with dots in place of the rest."""
    return text if len(text) <= width else text[: max(0, width - 3)].rstrip() + "..."


def seconds_word(seconds: float) -> str:
    """Returns `3725` as `1 h 2 min`, `75` as `1 min 15 s`, `8.2` as `8 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


GAP = "  "
NOTHING = ("", "-")
LEAST_ROOM = 24  # characters; a last column with less room is printed below the table


class Page:
    """Writes to a console. Text is printed literally: no markup, no terminal control characters."""

    def __init__(self, console: Console | None = None, *, error: bool = False) -> None:
        self._console = console or Console(highlight=False, stderr=error)

    def say(self, line: str) -> None:
        """Prints one line."""
        self._console.print(Text(one_line(line)), soft_wrap=True)

    def heading(self, line: str) -> None:
        """Prints a heading above a table, after an empty line."""
        self._console.print()
        self._console.print(Text(one_line(line), style="bold"), soft_wrap=True)

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Prints names with their values; leaves out empty ones."""
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            if value:
                line = Text.assemble((name.ljust(width) + GAP, "bold"), one_line(value))
                self._console.print(line, soft_wrap=True)

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        right: frozenset[str] = frozenset(),
        least: Sequence[int] = (),
    ) -> None:
        """Prints rows under headers; columns in `right` are numbers. A row that begins with spaces is indented.

        On a terminal that is too narrow the columns of `least` are left out, the first of them first. The last column
        is cut to the terminal's width.
        """
        cells = [[_indent(row[0]) + one_line(row[0]), *map(one_line, row[1:])] for row in rows]
        widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
        if not self._console.is_terminal:
            for row in (headers, *cells):
                parts = [_aligned(*each) for each in zip(row, widths, (name in right for name in headers), strict=True)]
                self._console.print(Text(GAP.join(parts).rstrip()), soft_wrap=True)
            return
        self._draw(headers, cells, widths, right, least)

    def _draw(
        self,
        headers: Sequence[str],
        cells: Sequence[Sequence[str]],
        widths: Sequence[int],
        right: frozenset[str],
        least: Sequence[int],
    ) -> None:
        """Draws the table on a terminal, without columns that have no content, to save room."""
        used = [at for at in range(len(headers)) if at == 0 or any(row[at] not in NOTHING for row in cells)]
        last = len(headers) - 1

        def left() -> int:
            return self._console.width - sum(widths[at] + len(GAP) for at in used if at != last)

        for at in least:
            if at in used and left() + len(GAP) < 0:
                used.remove(at)
        room = left() - len(GAP)
        below: list[Sequence[str]] = []  # rows whose last cell does not fit into the table
        if last in used and room < LEAST_ROOM:
            used.remove(last)
            below = [row for row in cells if row[last] not in NOTHING]
        # The box style adds one space between columns.
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, len(GAP) - 1, 0, 0), show_edge=False)
        for at in used:
            table.add_column(headers[at], justify="right" if headers[at] in right else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(shorten(row[at], room) if at == last else row[at]) for at in used))
        self._console.print(table)
        for row in below:
            self.say(f"{row[0].lstrip()}: {row[last]}")


def _indent(text: str) -> str:
    return " " * (len(text) - len(text.lstrip(" ")))


def _aligned(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def document(message: Message) -> dict[str, Any]:
    """Converts a message. All fields are included, also with default values; absent messages are left out."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            found[field.name] = [_value(field.enum_type, each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _value(field.enum_type, value)
    return found


def print_document(content: Mapping[str, Any]) -> None:
    """Writes one JSON document to the standard output."""
    print(json.dumps(content, indent=2))


def _value(enum: Any, value: Any) -> Any:
    if enum is not None:
        return enum_word(enum, value)
    if isinstance(value, timestamp_pb2.Timestamp):
        return value.ToJsonString()
    return document(value) if isinstance(value, Message) else value
