"""Bare values: from the dialects that write them to JSON, by the schema's types."""

from __future__ import annotations

import json

import pytest

from services.text.conversation import CallArguments, CallEnded, CallStarted, ParsedEvent, TextDelta
from services.text.parsers.dialect import GLM, QWEN_XML, Dialect
from services.text.parsers.tool_grammar import ANY, ToolShape
from services.text.parsers.xml_calls import as_json
from tests.case import case
from tests.text.parsers.answers import merged

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "list": {"$ref": "#/$defs/list"},
    },
    "$defs": {"list": {"type": "array"}},
}


def test_values_become_json() -> None:
    for text, allowed, expected in [
        ("3", {"integer"}, "3"),
        (" 3.50\n", {"number"}, "3.50"),
        ("3", {"number"}, "3"),
        ("True", {"boolean"}, "true"),
        ("None", {"null", "string"}, "null"),
        ("null", {"null", "string"}, "null"),
        ("nil", {"null", "string"}, '"nil"'),
        ('"x"', {"null", "string"}, '"\\"x\\""'),
        ("3", {"null", "string"}, '"3"'),
        ("3", ANY, "3"),
        ('"x"', ANY, '"x"'),
        ("x", ANY, '"x"'),
        ("x y", {"integer"}, '"x y"'),
        ("NaN", {"number"}, '"NaN"'),
        ("03", {"integer"}, '"03"'),
        ('{"a": [1]}', {"object"}, '{"a": [1]}'),
        ("{'a': 1}", {"object"}, "\"{'a': 1}\""),
        ("3", {"string", "integer"}, "3"),
        ("3.0", {"string", "integer"}, "3.0"),
    ]:
        with case(text=text, allowed=allowed, expected=expected):
            assert as_json(text, frozenset(allowed)) == expected


def read(dialect: Dialect, text: str, cut: int) -> list[ParsedEvent]:
    parser = dialect.parser([ToolShape("f", SCHEMA)], reasoning_open=False)
    return merged([*parser.push(text[:cut]), *parser.push(text[cut:]), *parser.finish()])


QWEN = """<tool_call>
<function=f>
<parameter=text>
 3
"x"\t</a>

</parameter>
<parameter=number>
4
</parameter><parameter=flag>False</parameter>
<parameter=maybe>
null
</parameter>
<parameter=list>
[1,
 2]
</parameter>
<parameter=other>
{"a": 1}
</parameter>
</function>
</tool_call>"""
GLM_TEXT = (
    '<tool_call>f\n<arg_key>text</arg_key>\n<arg_value> 3\n"x"\t</a>\n</arg_value><arg_key>number</arg_key>'
    "<arg_value>4</arg_value>\n<arg_key> flag </arg_key><arg_value>False</arg_value><arg_key>maybe</arg_key>"
    "<arg_value>null</arg_value><arg_key>list</arg_key><arg_value>[1,\n 2]</arg_value>"
    '<arg_key>other</arg_key><arg_value>{"a": 1}</arg_value></tool_call>'
)


@pytest.mark.parametrize(("dialect", "text"), [(QWEN_XML, QWEN), (GLM, GLM_TEXT)], ids=["qwen-xml", "glm"])
def test_arguments_follow_the_schema_under_any_split(dialect: Dialect, text: str) -> None:
    expected = {
        "text": ' 3\n"x"\t</a>\n',
        "number": 4,
        "flag": False,
        "maybe": None,
        "list": [1, 2],
        "other": {"a": 1},
    }
    for cut in range(len(text) + 1):
        started, emitted, ended = read(dialect, text, cut)
        assert (started, ended) == (CallStarted(0, "f"), CallEnded(0))
        assert isinstance(emitted, CallArguments)
        assert json.loads(emitted.text) == expected


def test_texts_of_strings_come_as_they_are_written() -> None:
    parser = QWEN_XML.parser([ToolShape("f", SCHEMA)], reasoning_open=False)
    assert merged(parser.push("<function=f><parameter=text>\nI ")) == [
        CallStarted(0, "f"),
        CallArguments(0, '{"text": "I '),
    ]
    assert merged(parser.push('say "hi')) == [CallArguments(0, 'say \\"hi')]
    assert parser.push("\n</para") == []
    assert merged(parser.push("graph>")) == [CallArguments(0, "\\n</paragraph>")]


def test_tags_may_be_missing() -> None:
    for text, arguments, rest in [
        ("<function=f>\n</function>", "{}", ""),
        ("<function=f></tool_call>", "{}", ""),
        ("<tool_call><function=f><parameter=number>4</parameter></tool_call>", '{"number": 4}', ""),
        ("<function=f><parameter=number>4</parameter>, that is", '{"number": 4', ", that is"),
        ("<function=f><parameter=number>4", '{"number": 4', ""),
        ("<function=f><parameter=text>\nab", '{"text": "ab', ""),
        ("<function=f>\n</function>\n</tool_call>\nSo.", "{}", "So."),
    ]:
        with case(text=text, arguments=arguments, rest=rest):
            for cut in range(len(text) + 1):
                expected = [CallStarted(0, "f"), CallArguments(0, arguments), CallEnded(0)]
                assert read(QWEN_XML, text, cut) == expected + ([TextDelta(rest)] if rest else [])
