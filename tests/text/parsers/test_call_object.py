"""Calls as JSON objects, in the variants that models write."""

from __future__ import annotations

from services.text.parsers.dialect import HERMES, NEMOTRON
from services.text.parsers.events import CallArguments, CallEnded, CallStarted, TextDelta
from tests.case import case
from tests.text.parsers.answers import TOOLS, call, merged, read, splits


def test_calls_are_read_leniently() -> None:
    for written, arguments in [
        ('{"name":"now","arguments":{"a":1}}', '{"a":1}'),
        ('{"name": "now", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"arguments": {"a": 1}, "name": "now"}', '{"a": 1}'),
        ('{"type": "function", "id": "x1", "name": "now", "arguments": {}}', "{}"),
        ('{"name": "now", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}', '{"a": "é"}'),
        ('{"name": "now", "arguments": null}', "{}"),
        ('{"name": "now"}', "{}"),
        ('{"name": "n\\u006fw", "arguments": {"a": "</tool_call> \\\\"}}', '{"a": "</tool_call> \\\\"}'),
        ('{\n  "name": "now",\n  "arguments": {\n    "a": [1, {}]\n  }\n}', '{\n    "a": [1, {}]\n  }'),
        ('[{"name": "now", "arguments": {"a": 1}}]', '{"a": 1}'),
    ]:
        with case(written=written, arguments=arguments):
            for pieces in splits(f"<tool_call>{written}</tool_call>", seed=1, count=10):
                assert read(HERMES, pieces) == call(0, "now", arguments)


def test_text_that_is_not_a_call_is_unchanged_content() -> None:
    for text in [
        "<tool_call>",
        "<tool_call>now()</tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": now}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "later", "arguments": {}}</tool_call>',
        '<tool_call>{"function": {"name": "now"}}</tool_call>',
        '<tool_call>{"arguments": {"a": <tool_call>',
        '{"name": "now", "arguments": {}}',
        "</tool_call>",
    ]:
        with case(text=text):
            for pieces in splits(text, seed=2, count=10):
                assert read(HERMES, pieces) == [TextDelta(text)]


def test_arguments_that_are_never_closed_end_with_the_markup() -> None:
    text = '<tool_call>{"name": "now", "arguments": {"a": 1</tool_call> Well.'
    for pieces in splits(text, seed=3, count=10):
        assert read(HERMES, pieces) == [*call(0, "now", '{"a": 1'), TextDelta("Well.")]


def test_a_call_that_breaks_off_behind_its_name_has_no_arguments() -> None:
    assert read(HERMES, ['<tool_call>{"name": "now", "argu']) == [CallStarted(0, "now"), CallEnded(0)]


def test_surplus_text_after_a_call_is_content() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}}</tool_call>'
    for pieces in splits(text, seed=4, count=10):
        assert read(HERMES, pieces) == [*call(0, "now", "{}"), TextDelta("}</tool_call>")]


def test_the_rest_of_a_list_that_turns_bad_is_content() -> None:
    bad = ', {"name": "later", "arguments": {}}]</TOOLCALL>'
    text = '<TOOLCALL>[{"name": "now", "arguments": {}}' + bad
    for pieces in splits(text, seed=5, count=10):
        assert read(NEMOTRON, pieces) == [*call(0, "now", "{}"), TextDelta(bad)]


def test_a_second_call_inside_one_that_failed_is_found() -> None:
    text = '<tool_call>\n<tool_call>{"name": "now"}</tool_call>'
    assert read(HERMES, [text]) == [TextDelta("<tool_call>"), *call(0, "now", "{}")]


def test_arguments_come_as_they_are_written() -> None:
    parser = HERMES.parser(TOOLS, reasoning_open=False)
    assert merged(parser.push('<tool_call>\n{"name": "now"')) == [CallStarted(0, "now")]
    assert merged(parser.push(', "arguments": {"te')) == [CallArguments(0, '{"te')]
    assert merged(parser.push('xt": "a')) == [CallArguments(0, 'xt": "a')]
    assert merged(parser.push('"}}')) == [CallArguments(0, '"}'), CallEnded(0)]
