"""Schemas for sampling: what says nothing passes, what cannot be followed is refused by its keyword."""

from __future__ import annotations

from typing import Any

import pytest

from services.rpc.errors import InvalidRequest
from services.text.schema import MAX_BYTES, check_schema, check_size, fit, lenient


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "object", "not": {}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "objec"}, "objec"),
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "/nowhere"),
        ({"type": "string", "pattern": "("}, "pattern: "),
        ({"type": "string", "pattern": "^(?=x)"}, "pattern: "),
        ({"type": "object", "properties": 5}, "properties"),
        ({"type": "string", "format": "iri"}, "iri"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_by_keyword(schema: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, "response_format")
    assert word in caught.value.message
    assert caught.value.param == "response_format"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("schema", "fitted"),
    [
        ({"type": "object", "propertyNames": {"type": "string"}}, {"type": "object"}),
        ({"type": "string", "format": "path"}, {"type": "string"}),
        (
            {"anyOf": [{"items": {"format": "jwt"}}], "x-guidance": {"lenient": True}},
            {"anyOf": [{"items": {}}]},
        ),
    ],
)
def test_what_says_nothing_is_left_out(schema: dict[str, Any], fitted: dict[str, Any]) -> None:
    assert fit(schema) == fitted
    check_schema(schema, "x")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "format": "date-time"},
        {"const": {"format": "path", "propertyNames": {"type": "string"}}},
        {"enum": [{"format": "path"}]},
        {"type": "object", "properties": {"format": {"type": "string"}}, "required": ["format"]},
    ],
)
def test_what_says_something_stays(schema: dict[str, Any]) -> None:
    assert fit(schema) == schema
    check_schema(schema, "x")


def test_what_nobody_promised_to_follow_is_followed_as_far_as_it_can_be() -> None:
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert lenient(plain) == plain
    loose = lenient({**plain, "propertyNames": {"pattern": "^a"}, "minProperties": 1})
    assert loose["properties"] == plain["properties"]
    assert lenient({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=x)"}}}) == {
        "type": "object"
    }


def test_a_huge_schema_is_refused() -> None:
    check_size({"description": "x" * (MAX_BYTES - 100)}, "tools[0].parameters")
    with pytest.raises(InvalidRequest, match=str(MAX_BYTES)):
        check_size({"description": "x" * MAX_BYTES}, "tools[0].parameters")


def test_a_deep_schema_is_refused() -> None:
    def nested(levels: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        for _ in range(levels):
            schema = {"items": schema}
        return schema

    check_size(nested(98), "x")
    with pytest.raises(InvalidRequest, match="nested deeper"):
        check_size(nested(100_000), "x")
