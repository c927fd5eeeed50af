"""Mistral: names with arguments after marks, in the forms of each model generation."""

from __future__ import annotations

import pytest

from services.text.parsers.dialect import MISTRAL
from services.text.parsers.events import CallEnded, CallStarted, TextDelta
from tests.case import case
from tests.text.parsers.answers import call, read, splits


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
def test_text_that_is_not_a_call_is_unchanged_content(text: str) -> None:
    for pieces in splits(text, seed=2, count=10):
        assert read(MISTRAL, pieces) == [TextDelta(text)]


def test_a_name_without_arguments_is_a_call_that_broke_off() -> None:
    assert read(MISTRAL, ["[TOOL_CALLS]now[ARGS]"]) == [CallStarted(0, "now"), CallEnded(0)]
