"""Ollama's names, times and lines."""

from __future__ import annotations

import pytest

from services.errors import Overloaded
from services.rest import ollama


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("a", "a"),
        ("a:latest", "a"),
        ("b", "b:latest"),
        ("b:latest", "b:latest"),
        ("c:1b", "c:1b"),
        ("unknown", "unknown"),
        ("unknown:latest", "unknown"),
        ("unknown:1b", "unknown:1b"),
        ("hf.co/org/m:Q8_0", "hf.co/org/m:Q8_0"),
        ("huggingface.co/org/m:Q8_0", "hf.co/org/m:Q8_0"),
        ("hf://org/m#Q8_0", "hf.co/org/m:Q8_0"),
        ("hf://org/n:latest", "hf.co/org/n"),
    ],
)
def test_a_name_is_known_with_and_without_its_tag(asked: str, expected: str) -> None:
    known = {"a", "b:latest", "c:1b", "hf.co/org/m:Q8_0", "hf.co/org/n"}
    assert ollama.known_name(asked, known.__contains__) == expected


def test_lists_show_a_tag() -> None:
    assert [ollama.tagged(name) for name in ("a", "a:1b")] == ["a:latest", "a:1b"]


def test_lines_and_errors() -> None:
    body = ollama.lines(({"a": "\n"}, {"b": 1}))
    assert (body.content_type, body.data) == ("application/x-ndjson", b'{"a":"\\n"}\n{"b":1}\n')
    assert ollama.error(Overloaded("why")).data == b'{"error":"why"}\n'


def test_times() -> None:
    assert ollama.timestamp(0) == "1970-01-01T00:00:00Z"
    assert ollama.timestamp().endswith("Z")
