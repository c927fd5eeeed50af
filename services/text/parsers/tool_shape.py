"""What a dialect needs to know of a tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
# Tools by name, with the schema of their arguments.
Tools = Mapping[str, "Schema | None"]


@dataclass(frozen=True, slots=True)
class ToolShape:
    """A tool's name and the JSON Schema of its arguments; None: it takes none."""

    name: str
    schema: dict[str, Any] | None


def by_name(shapes: Sequence[ToolShape]) -> Tools:
    """The tools in a form to look them up in."""
    return {shape.name: shape.schema for shape in shapes}
