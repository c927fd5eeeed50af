"""A figure of allm beside its peer's in the same run, with the bar that it has to reach, and the table of such rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, as the median over the rounds."""

    case: str  # such as `BF16, unique prompts, 8 clients`
    figure: str  # with its unit
    ours: float
    peer: float
    name: str  # of the peer
    bar: float  # of ours by the peer's
    at_most: bool = False  # whether the bar is the highest ratio, as for a time; otherwise it is the lowest

    @property
    def ratio(self) -> float:
        """Ours by the peer's."""
        return self.ours / self.peer if self.peer else math.nan

    @property
    def holds(self) -> bool:
        """True if the ratio reaches the bar."""
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar

    @property
    def miss(self) -> str:
        """The distance from the bar in percent of it; empty if it holds."""
        return "" if self.holds else f"{100 * abs(self.ratio / self.bar - 1):.0f}%"


def counted(count: int, noun: str) -> str:
    """Returns `1 client`, `8 clients`."""
    return f"{count} {noun}{'s' if count > 1 else ''}"


def table(rows: Iterable[Row]) -> str:
    """Formats rows as a Markdown table."""
    lines = ["| case | figure | allm | peer | | ratio | bar | misses by |", "|---|---|---:|---:|---|---:|---:|---:|"]
    for row in rows:
        bar = f"{'at most' if row.at_most else 'at least'} {row.bar:g}"
        figures = f"{_short(row.ours)} | {_short(row.peer)} | {row.name} | {row.ratio:.2f}"
        lines.append(f"| {row.case} | {row.figure} | {figures} | {bar} | {row.miss} |")
    return "\n".join(lines)


def _short(figure: float) -> str:
    return f"{figure:.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
