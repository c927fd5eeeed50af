"""Llama 3: only the start of the answer marks a call."""

from __future__ import annotations

import pytest

from services.text.parsers.dialect import LLAMA3
from services.text.parsers.events import TextDelta
from tests.case import case
from tests.text.parsers.answers import call, read, splits

NOW = '{"name": "now", "parameters": {}}'


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
