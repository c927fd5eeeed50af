"""Which JSON types a schema allows, as far as its keywords say so plainly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.text.parsers.tool_shape import Schema

STRING = frozenset({"string"})
ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
# Alternatives are followed only so deep: schemas come from callers.
MAX_DEPTH = 16


def properties(schema: Schema | None) -> dict[str, Any]:
    """The schemas of an object's properties; those that are only required allow everything."""
    schema = schema or {}
    found = schema.get("properties")
    named = dict(found) if isinstance(found, Mapping) else {}
    return named | {name: {} for name in required(schema) if name not in named}


def required(schema: Schema | None) -> tuple[str, ...]:
    """The names of the properties that an object must have."""
    found = (schema or {}).get("required")
    return tuple(name for name in found if isinstance(name, str)) if isinstance(found, list | tuple) else ()


def resolved(schema: Any, root: Schema) -> Schema:
    """The schema that a reference within `root` leads to; what leads nowhere allows everything."""
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
    """The types that values of `schema` may have."""
    return _types(schema, root, 0, set()) or ANY


def _types(schema: Any, root: Schema, depth: int, seen: set[int]) -> frozenset[str]:
    schema = resolved(schema, root)
    if depth >= MAX_DEPTH:
        return ANY
    if id(schema) in seen:
        return frozenset()  # they are in the union already: schemas that refer to each other end here
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
    """The JSON type of a value."""
    if value is None:
        return "null"
    for python, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (dict, "object")):
        if isinstance(value, python):
            return name
    return "array"
