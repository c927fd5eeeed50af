"""Values that fit a schema, and those that do not, as far as it is checked; with jsonschema as the reference."""

from __future__ import annotations

from typing import Any

import jsonschema

from services.text.parsers.json_fit import MAX_STEPS, fits
from tests.case import case

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 1.0, 2.5, -3, 10**400, "", "a", "abcd", [], [1], [1, "a"], [[]], {}, {"a": 1}, {"a": "x"},
    {"a": 1, "b": [1, 2]}, {"b": None}, {"a": {"a": {"a": 1}}},
)  # fmt: skip
SCHEMAS: tuple[Any, ...] = (
    {}, {"type": "integer"}, {"type": "number"}, {"type": ["string", "null"]}, {"type": "object"}, {"const": 1},
    {"enum": [1, "a", None]}, {"enum": [True]}, {"minimum": 1, "maximum": 2.5}, {"exclusiveMinimum": 1},
    {"exclusiveMaximum": 1}, {"multipleOf": 2.5}, {"minLength": 1, "maxLength": 3}, {"minItems": 1, "maxItems": 1},
    {"minProperties": 1, "maxProperties": 1}, {"required": ["a"]}, {"properties": {"a": {"type": "integer"}}},
    {"properties": {"a": {}}, "additionalProperties": False}, {"additionalProperties": {"type": "integer"}},
    {"items": {"type": "integer"}}, {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
    {"items": False}, {"anyOf": [{"type": "string"}, {"minimum": 1}]}, {"oneOf": [{"minimum": 0}, {"maximum": 1}]},
    {"allOf": [{"type": "number"}, {"minimum": 1}]}, {"not": {"type": "string"}},
    {"if": {"type": "object"}, "then": {"required": ["a"]}, "else": {"type": "null"}},
    {"properties": {"a": {"$ref": "#"}}, "type": ["object", "integer"]},
    {"$defs": {"x": {"type": "string"}}, "additionalProperties": {"$ref": "#/$defs/x"}},
)  # fmt: skip


def test_every_pair_is_judged_as_by_the_reference() -> None:
    for schema in SCHEMAS:
        validator = jsonschema.Draft202012Validator(schema)
        for value in VALUES:
            if "multipleOf" in schema and value == 10**400:
                continue  # the reference fails on it
            with case(value=value, schema=schema):
                assert fits(value, schema) == validator.is_valid(value)


def test_what_is_not_checked_fits_and_malformed_schemas_allow_everything() -> None:
    for schema in ({"pattern": "(a+)+$"}, {"type": 3}, {"enum": 1}, {"properties": 1}, {"anyOf": []}, {"minimum": "x"}):
        with case(schema=schema):
            assert fits("aaaa", schema) == (schema != {"type": 3})
    assert fits({"x1": 1}, {"patternProperties": {"^x": {}}, "additionalProperties": False})


def test_work_and_depth_are_bounded() -> None:
    endless = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    assert not fits(1, endless)
    assert not fits(10**400, {"multipleOf": 2})
    assert not fits([1] * (MAX_STEPS + 1), {"items": {}})
