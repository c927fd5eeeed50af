"""Reasoning before an answer."""

from __future__ import annotations

from services.text.parsers.dialect import PLAIN
from services.text.parsers.events import Content, Reasoning
from tests.case import case
from tests.text.parsers.answers import read, splits


def test_thoughts_are_told_apart() -> None:
    for text, is_open, expected in [
        ("<think>a</think>b", False, [Reasoning("a"), Content("b")]),
        ("\n <think> a </think> b ", False, [Reasoning("a"), Content("b ")]),
        ("a</think>b", True, [Reasoning("a"), Content("b")]),
        ("<think>a</think>b", True, [Reasoning("a"), Content("b")]),
        ("<think></think>b", False, [Content("b")]),
        ("<think>\n\n</think>\n\n", False, []),
        ("<think>a</think><think>b</think>c", False, [Reasoning("ab"), Content("c")]),
        ("[THINK]a</think>[/THINK]b", False, [Reasoning("a</think>"), Content("b")]),
        ("a</think>b", False, [Content("a</think>b")]),
        ("a <think>b</think>", False, [Content("a <think>b</think>")]),
        ("<think>a</thi \n", False, [Reasoning("a</thi \n")]),
        ("<thi", False, [Content("<thi")]),
        (" \n", False, [Content(" \n")]),
        ("", True, []),
    ]:
        with case(text=text, is_open=is_open, expected=expected):
            for pieces in splits(text, seed=1, count=10):
                assert read(PLAIN, pieces, reasoning_open=is_open) == expected
