"""A tool's name and the JSON Schema of its arguments, and the JSON types that its basic keywords allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
# Schemas of the arguments, by tool name.
Tools = Mapping[str, "Schema | None"]

STRING = frozenset({"string"})
ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
# The depth limit for nested alternatives, because schemas come from callers.
MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class ToolShape:
    """A tool's name and the JSON Schema of its arguments; None means no arguments."""

    name: str
    schema: dict[str, Any] | None


def by_name(shapes: Sequence[ToolShape]) -> Tools:
    """Maps tool names to schemas."""
    return {shape.name: shape.schema for shape in shapes}


def properties(schema: Schema | None) -> dict[str, Any]:
    """Returns the schemas of an object's properties; one that is only listed in `required` allows everything."""
    schema = schema or {}
    found = schema.get("properties")
    named = dict(found) if isinstance(found, Mapping) else {}
    return named | {name: {} for name in required(schema) if name not in named}


def required(schema: Schema | None) -> tuple[str, ...]:
    """Returns the names of the required properties of an object."""
    found = (schema or {}).get("required")
    return tuple(name for name in found if isinstance(name, str)) if isinstance(found, list | tuple) else ()


def resolved(schema: Any, root: Schema) -> Schema:
    """Resolves references within `root`. An unresolvable one becomes a schema that allows everything."""
    seen: set[str] = set()
    while isinstance(schema, Mapping) and "$ref" in schema:
        path = schema["$ref"]
        if not isinstance(path, str) or not path.startswith("#/") or path in seen:
            return {}
        seen.add(path)
        schema = root
        for step in path[2:].split("/"):
            schema = schema.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def types(schema: Any, root: Schema) -> frozenset[str]:
    """Returns the types that `schema` allows."""
    return _types(schema, root, 0, set()) or ANY


def _types(schema: Any, root: Schema, depth: int, seen: set[int]) -> frozenset[str]:
    schema = resolved(schema, root)
    if depth >= MAX_DEPTH:
        return ANY
    if id(schema) in seen:
        return frozenset()  # already in the union; this also ends circular references
    seen.add(id(schema))
    named = schema.get("type")
    if isinstance(named, str | list):
        return frozenset({named} if isinstance(named, str) else (name for name in named if isinstance(name, str)))
    chosen = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(chosen, list):
        return frozenset(map(type_of, chosen))
    for keyword in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(keyword)
        if isinstance(parts, list) and parts:
            return frozenset[str]().union(*(_types(part, root, depth + 1, seen) for part in parts))
    return ANY


def type_of(value: object) -> str:
    """Returns the JSON type of a value."""
    if value is None:
        return "null"
    for python, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (dict, "object")):
        if isinstance(value, python):
            return name
    return "array"
