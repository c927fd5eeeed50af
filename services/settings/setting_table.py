"""The table of all variables in setting_table.toml: meaning, readers and unit."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).with_suffix(".toml")
# Read, but internal or another program's: not in the table.
INTERNAL = frozenset({"ALLM_LIFELINE_FD", "CUDA_VISIBLE_DEVICES"})
SERVICES = ("authorizer", "catalog", "text", "audio", "image")
PROCESSES = ("serve", "gateway", *SERVICES, "allm")
UNITS = {
    "_BYTES": "bytes",
    "_SECONDS": "seconds",
    "_TOKENS": "tokens",
    "_DAYS": "days",
    "_PIXELS": "pixels",
    "_PORT": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: one variable."""

    name: str
    group: str  # heading of its table
    read_by: tuple[str, ...]  # of PROCESSES
    meaning: str  # Markdown
    unit: str | None = None  # None: derived from the name's suffix
    default: str = ""  # in words; empty: the value itself
    allowed: str = ""  # empty: taken from the code

    @property
    def measure(self) -> str | None:
        """The unit, empty for numbers without one; None: not given."""
        if self.unit is not None:
            return self.unit
        return next((unit for end, unit in UNITS.items() if self.name.endswith(end)), None)


def read_table() -> list[Row]:
    """Returns all rows in order.

    Raises:
        ValueError: the file is not TOML, or an entry lacks a field or has an unknown one; the message names it.
    """
    rows = []
    for group, entries in tomllib.loads(PATH.read_text()).items():
        for name, entry in entries.items():
            try:
                row = Row(name=name, group=group, **entry | {"read_by": tuple(entry["read_by"])})
            except (TypeError, KeyError) as error:
                raise ValueError(f"{PATH.name}: {name}: {error}") from error
            if not set(row.read_by) <= set(PROCESSES):
                raise ValueError(f"{PATH.name}: {name}: read_by may have {', '.join(PROCESSES)}")
            rows.append(row)
    return rows
