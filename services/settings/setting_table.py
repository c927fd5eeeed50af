"""What every variable is for, who reads it, and in which unit, from setting_table.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).with_suffix(".toml")
# Read, but not set by hand, or not ours: not in the table.
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
    """One variable."""

    name: str
    group: str  # heading of the table that it is in
    read_by: tuple[str, ...]  # of PROCESSES
    meaning: str  # Markdown
    unit: str | None = None  # None: what the end of its name says
    default: str = ""  # in words; empty: the value itself
    allowed: str = ""  # empty: what the code tells

    @property
    def measure(self) -> str | None:
        """The unit, empty for numbers that have none; None: nobody says."""
        if self.unit is not None:
            return self.unit
        return next((unit for end, unit in UNITS.items() if self.name.endswith(end)), None)


def read_table() -> list[Row]:
    """All rows, in their order.

    Raises:
        ValueError: the file is no TOML, or an entry lacks something or has something that none has; it is named.
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
