"""Reasoning before an answer."""

from __future__ import annotations

from services.text.conversation import ReasoningDelta, TextDelta
from services.text.parsers.dialect import PLAIN
from tests.case import case
from tests.text.parsers.answers import read, splits


def test_thoughts_are_separated() -> None:
    for text, is_open, expected in [
        ("<think>a</think>b", False, [ReasoningDelta("a"), TextDelta("b")]),
        ("\n <think> a </think> b ", False, [ReasoningDelta("a"), TextDelta("b ")]),
        ("a</think>b", True, [ReasoningDelta("a"), TextDelta("b")]),
        ("<think>a</think>b", True, [ReasoningDelta("a"), TextDelta("b")]),
        ("<think></think>b", False, [TextDelta("b")]),
        ("<think>\n\n</think>\n\n", False, []),
        ("<think>a</think><think>b</think>c", False, [ReasoningDelta("ab"), TextDelta("c")]),
        ("[THINK]a</think>[/THINK]b", False, [ReasoningDelta("a</think>"), TextDelta("b")]),
        ("a</think>b", False, [TextDelta("a</think>b")]),
        ("a <think>b</think>", False, [TextDelta("a <think>b</think>")]),
        ("<think>a</thi \n", False, [ReasoningDelta("a</thi \n")]),
        ("<thi", False, [TextDelta("<thi")]),
        (" \n", False, [TextDelta(" \n")]),
        ("", True, []),
    ]:
        with case(text=text, is_open=is_open, expected=expected):
            for pieces in splits(text, seed=1, count=10):
                assert read(PLAIN, pieces, reasoning_open=is_open) == expected
