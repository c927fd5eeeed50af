"""Validates JSON text against the checks' schemas: objects of enums, bounded integers, and lists of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def fault(text: str, schema: Mapping[str, Any]) -> str:
    """Describes the first error of a JSON text; empty if it is valid."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text[:80]!r} is no JSON: {error}"
    return _fault(value, schema, "the value")


def _fault(value: Any, schema: Mapping[str, Any], where: str) -> str:
    if "enum" in schema:
        return "" if value in schema["enum"] else f"{where} is {value!r}, none of {schema['enum']}"
    if schema["type"] == "integer":
        fits = type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        return "" if fits else f"{where} is {value!r}, no integer of {schema['minimum']} to {schema['maximum']}"
    if schema["type"] == "array":
        if not isinstance(value, list) or not schema["minItems"] <= len(value) <= schema["maxItems"]:
            return f"{where} is no list of {schema['minItems']} to {schema['maxItems']}"
        return next(filter(None, (_fault(each, schema["items"], f"an item of {where}") for each in value)), "")
    if not isinstance(value, dict) or value.keys() != schema["properties"].keys():
        return f"{where} is no object with {', '.join(schema['properties'])} and nothing else"
    return next(filter(None, (_fault(value[name], part, name) for name, part in schema["properties"].items())), "")
