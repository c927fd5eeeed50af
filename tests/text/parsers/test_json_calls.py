"""Calls as JSON objects, in the variants that models write."""

from __future__ import annotations

import pytest

from services.text.conversation import CallArguments, CallEnded, CallStarted, TextDelta
from services.text.parsers.dialect import HERMES, LLAMA3, MISTRAL, NEMOTRON
from tests.case import case
from tests.text.parsers.answers import TOOLS, call, merged, read, splits

NOW = '{"name": "now", "parameters": {}}'


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


@pytest.mark.parametrize("text", [NOW, f"\n {NOW}", f"<|python_tag|>{NOW}", f"<|python_tag|>\n{NOW}\n"])
def test_the_tag_may_be_there_or_not(text: str) -> None:
    for pieces in splits(text, seed=1, count=10):
        assert read(LLAMA3, pieces) == call(0, "now", "{}")


def test_calls_may_stand_in_a_row() -> None:
    for between in ["", " ", "\n", "; ", ";", " ; <|python_tag|>"]:
        with case(between=between):
            for pieces in splits(NOW + between + NOW, seed=2, count=10):
                assert read(LLAMA3, pieces) == call(0, "now", "{}") + call(1, "now", "{}")


def test_in_the_midst_of_text_only_the_tag_begins_a_call() -> None:
    assert read(LLAMA3, list(f"Look: {NOW}")) == [TextDelta(f"Look: {NOW}")]
    assert read(LLAMA3, list(f"Look:\n<|python_tag|>{NOW}")) == [TextDelta("Look:"), *call(0, "now", "{}")]


@pytest.mark.parametrize("text", ['{"name": "Ann", "age": 3}', '{"a": 1}', "{", '<|python_tag|>now.call(a="b")', " {}"])
def test_other_json_is_content_to_the_letter(text: str) -> None:
    for pieces in splits(text, seed=3, count=10):
        assert read(LLAMA3, pieces) == [TextDelta(text)]


def test_json_that_is_no_call_is_emitted_at_its_first_key() -> None:
    assert LLAMA3.parser([], reasoning_open=False).push('{"answer": ') != []


def test_text_after_a_call_is_content() -> None:
    for pieces in splits(f"{NOW}\n\nDone; yes.", seed=4, count=10):
        assert read(LLAMA3, pieces) == [*call(0, "now", "{}"), TextDelta("Done; yes.")]


def test_all_forms_are_read() -> None:
    for text in [
        '[TOOL_CALLS]now[ARGS]{"a": 1}',
        '[TOOL_CALLS] now [ARGS] {"a": 1}\n',
        '[TOOL_CALLS]now{"a": 1}',
        '[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{"a": 1}',
        '[TOOL_CALLS][{"name": "now", "arguments": {"a": 1}, "id": "123456789"}]',
        '[TOOL_CALLS] {"name": "now", "arguments": {"a": 1}}',
    ]:
        with case(text=text):
            for pieces in splits(text, seed=1, count=10):
                assert read(MISTRAL, pieces) == call(0, "now", '{"a": 1}')


@pytest.mark.parametrize("text", ["[TOOL_CALLS]", "[TOOL_CALLS][1]", "[TOOL_CALLS]later[ARGS]{}", "[ARGS]{}"])
def test_a_name_that_is_not_a_call_is_unchanged_content(text: str) -> None:
    for pieces in splits(text, seed=2, count=10):
        assert read(MISTRAL, pieces) == [TextDelta(text)]


def test_a_name_without_arguments_is_a_call_that_broke_off() -> None:
    assert read(MISTRAL, ["[TOOL_CALLS]now[ARGS]"]) == [CallStarted(0, "now"), CallEnded(0)]
