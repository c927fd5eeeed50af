"""Schemas for sampling: keywords without meaning pass, keywords that cannot be enforced are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from services.errors import InvalidRequest
from services.text.schema import MAX_BYTES, MAX_OPTIONAL, check_schema, check_size, fit, lenient
from tests.byte_tokens import TOKENIZER, accepts
from tests.case import case


def test_a_schema_that_cannot_be_followed_is_refused_by_keyword() -> None:
    for schema, word in [
        ({"type": "object", "not": {}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "objec"}, "objec"),
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "/nowhere"),
        ({"type": "string", "pattern": "("}, "pattern: "),
        ({"type": "string", "pattern": "^(?=x)"}, "pattern: "),
        ({"type": "object", "properties": 5}, "properties"),
        ({"type": "string", "format": "iri"}, "iri"),
    ]:
        with case(schema=schema, word=word):
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
def test_keywords_without_effect_are_left_out(schema: dict[str, Any], fitted: dict[str, Any]) -> None:
    assert fit(schema) == fitted
    check_schema(schema, "x")


def test_keywords_with_effect_stay() -> None:
    for schema in [
        {"type": "string", "format": "uuid"},
        # Names of properties that are also keywords.
        {"properties": {"propertyNames": {"type": "string"}, "uniqueItems": False, "if": {}, "maxItems": {}}},
        {"$defs": {"not": False, "unevaluatedItems": True}, "$ref": "#/$defs/unevaluatedItems"},
        {"const": {"format": "path", "propertyNames": {"type": "string"}}},
        {"enum": [{"format": "path"}]},
        {"type": "object", "properties": {"format": {"type": "string"}}, "required": ["format"]},
    ]:
        with case(schema=schema):
            assert fit(schema) == schema
            check_schema(schema, "x")


def test_keywords_that_say_nothing_are_left_out() -> None:
    for nothing in [
        {"uniqueItems": False},
        {"unevaluatedProperties": True},
        {"unevaluatedItems": {}},
        {"if": {"type": "string"}},
        {"then": {"type": "string"}},
        {"else": False},
        {"minContains": 2},
        {"not": False},
        {"dependentRequired": {}},
    ]:
        with case(nothing=nothing):
            assert fit({"type": "object", "items": nothing}) == {"type": "object", "items": {}}


def test_counts_may_be_written_as_decimals() -> None:
    assert fit({"minLength": 2.0, "maxItems": 3.5}) == {"minLength": 2, "maxItems": 3.5}


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("date", ["2024-02-29", "2000-02-29", "2021-12-31", "0004-02-29"], ["2021-02-29", "1900-02-29", "0000-01-01"]),
        ("time", ["23:59:59Z", "00:00:00.5+01:00"], ["23:59:60Z", "24:00:00Z"]),
        ("date-time", ["2024-02-29T23:59:59Z"], ["2023-02-29T23:59:59Z", "1998-12-31T23:59:60Z"]),
    ],
)
def test_dates_are_those_of_the_calendar(kind: str, right: list[str], wrong: list[str]) -> None:
    schema = {"type": "string", "format": kind, "allOf": [{"minLength": 1}]}
    check_schema(schema, "x")
    grammar = f"start: %json {json.dumps(fit(schema))}"
    assert [text for text in right if not accepts(grammar, json.dumps(text))] == []
    assert [text for text in wrong if accepts(grammar, json.dumps(text))] == []


def optional(count: int, **schema: Any) -> dict[str, Any]:
    named = {f"property_{number}": {"type": "string"} for number in range(count)}
    return {"type": "object", "properties": named, "additionalProperties": False, **schema}


def test_an_object_with_too_many_optional_properties_is_refused() -> None:
    check_schema(optional(MAX_OPTIONAL), "x")
    many = optional(MAX_OPTIONAL + 1)
    for schema in (many, {"anyOf": [{"items": many}]}):
        with pytest.raises(InvalidRequest, match=r"properties: 401 .* 400 are allowed"):
            check_schema(schema, "x")
    assert lenient(many) == {"type": "object"}
    check_schema(optional(2_000, required=[f"property_{number}" for number in range(2_000)]), "x")
    check_schema({"enum": [many]}, "x")


def test_as_many_as_are_allowed_can_be_written() -> None:
    """The compiler has its own limits, which it reaches only in the middle of an answer."""
    kinds = [{"type": "string"}, {"type": ["integer", "null"]}, {"enum": ["a", 1]}, {"type": "array", "items": {}}, {}]
    named = {f"p{number}": kinds[number % len(kinds)] for number in range(MAX_OPTIONAL)}
    schema = {"type": "object", "properties": named, "patternProperties": {"^x": {"type": "string"}}}
    check_schema(schema, "x")
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(json.dumps(fit(schema))), log_level=0)
    text = '{"p0":"x","p2":"a","p399":[{}],"x":"y"}'
    for byte in text.encode():
        matcher.compute_bitmask()
        assert matcher.consume_token(byte), matcher.get_error()
    assert matcher.is_accepting()


def test_optional_keywords_are_followed_as_far_as_possible() -> None:
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
