"""The types that a schema allows."""

from __future__ import annotations

from typing import Any

from services.text.parsers.tool_schema import ANY, properties, required, types
from tests.case import case

ROOT: dict[str, Any] = {
    "$defs": {"a": {"type": "string"}, "b": {"$ref": "#/$defs/a"}, "c": {"$ref": "#/$defs/c"}, "x/y": {"type": "null"}}
}


def test_types_are_found() -> None:
    for schema, expected in [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None, True, 1.5, [], {}]}, ANY),
        ({"const": 3}, {"integer"}),
        ({"anyOf": [{"type": "string"}, {"oneOf": [{"type": "null"}]}]}, {"string", "null"}),
        ({"$ref": "#/$defs/b"}, {"string"}),
        ({"$ref": "#/$defs/x~1y"}, {"null"}),
        ({"$ref": "#/$defs/c"}, ANY),
        ({"$ref": "#/$defs/none"}, ANY),
        ({"$ref": "https://elsewhere"}, ANY),
        ({"$ref": 3}, ANY),
        ({}, ANY),
        (True, ANY),
        (None, ANY),
        ({"type": 3}, ANY),
        ({"anyOf": "x"}, ANY),
    ]:
        with case(schema=schema, expected=expected):
            assert types(schema, ROOT) == expected


def test_schemas_that_never_end_are_left_alone() -> None:
    loop: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/loop"}]}
    assert types(loop, {"$defs": {"loop": loop}}) == ANY
    wide = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 50} for at in range(60)}
    assert types({"$ref": "#/$defs/d0"}, {"$defs": wide}) == ANY


def test_required_names_are_properties() -> None:
    schema = {"properties": {"a": {"type": "null"}}, "required": ["b", "a", 3]}
    assert properties(schema) == {"a": {"type": "null"}, "b": {}}
    assert required(schema) == ("b", "a")
    assert (properties({"properties": 1, "required": 2}), required(None)) == ({}, ())
