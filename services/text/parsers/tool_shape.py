"""The part of a tool definition that dialects need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
# Schemas of the arguments, by tool name.
Tools = Mapping[str, "Schema | None"]


@dataclass(frozen=True, slots=True)
class ToolShape:
    """A tool's name and the JSON Schema of its arguments; None means no arguments."""

    name: str
    schema: dict[str, Any] | None


def by_name(shapes: Sequence[ToolShape]) -> Tools:
    """Maps tool names to schemas."""
    return {shape.name: shape.schema for shape in shapes}
