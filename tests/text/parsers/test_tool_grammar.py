"""The types that a schema allows, and grammars of bare values."""

from __future__ import annotations

import json
from typing import Any

from services.text.parsers.dialect import HERMES, QWEN_XML
from services.text.parsers.tool_grammar import ANY, ToolShape, properties, required, types
from tests.byte_tokens import accepts
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


def allowed(schema: Any, value: str, **root: Any) -> bool:
    """Returns whether the XML form's grammar accepts this value for a parameter with this schema."""
    shape = ToolShape("f", {"properties": {"v": schema}, "required": ["v"], **root})
    grammar = QWEN_XML.call_grammar([shape], required=True, parallel=False)
    call = f"<tool_call>\n<function=f>\n<parameter=v>\n{value}\n</parameter>\n</function>\n</tool_call>"
    return accepts(grammar, call)


def test_values_follow_their_schema() -> None:
    for schema, right, wrong in [
        ({"type": "string"}, ["", "a\nb", "3", "</function>", "é/\\"], ["a</parameter>"]),
        ({"type": "string", "enum": ["a", "b\nc", 'd"']}, ["a", "b\nc", 'd"'], ["", "d", '"a"']),
        ({"const": "x"}, ["x"], ["y"]),
        ({"enum": ["x", 1, None]}, ["x", "1", "null"], ["2"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "éüö"], ["a", "abcd", ""]),
        ({"type": "string", "maxLength": 1}, ["", "a", "\n"], ["ab"]),
        ({"type": "string", "minLength": "x"}, [""], []),
        ({"type": "string", "pattern": "^a+/b$"}, ["aa/b"], ["b", "xab", "aa/bc"]),
        ({"type": "string", "pattern": "a|b"}, ["xax", "b"], ["x"]),
        ({"type": "integer"}, ["3", "-1"], ["3.5", "x", '"3"']),
        ({"type": ["string", "null"]}, ["null", "x"], []),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, ['{"a": null}'], ["{}"]),
        ({"$ref": "#/$defs/n"}, ["3"], ["x"]),
        ({"type": "array", "items": {"$ref": "#/$defs/n"}}, ["[1, 2]", "[1,2]"], ["[  1]", '["x"]']),
        ({}, ["3", '"x"', "{}"], ["x"]),
        (True, ["3"], ["x"]),
    ]:
        with case(schema=schema, right=right, wrong=wrong):
            for value in right:
                assert allowed(schema, value, **{"$defs": {"n": {"type": "integer"}}}), value
            for value in wrong:
                assert not allowed(schema, value, **{"$defs": {"n": {"type": "integer"}}}), value


def test_names_and_texts_are_quoted() -> None:
    name = 'f"\\é'
    grammar = HERMES.call_grammar([ToolShape(name, {})], required=True, parallel=False)
    head = f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    assert accepts(grammar, head + '{"a": 1}}\n</tool_call>')
    assert not accepts(grammar, head + "3}\n</tool_call>"), "arguments are an object"


def test_whitespace_is_one_space_at_most() -> None:
    grammar = HERMES.call_grammar([ToolShape("f", {})], required=True, parallel=False)
    for text, right in (
        ('{"a":1,"b":2}', True),
        ('{"a": 1, "b": 2}', True),
        ('{"a":  1}', False),
        ('{\n"a": 1}', False),
    ):
        assert accepts(grammar, f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>') is right
