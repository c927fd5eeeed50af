"""Ollama's times and lines."""

from __future__ import annotations

from services.errors import Overloaded
from services.rest import ollama


def test_lines_and_errors() -> None:
    body = ollama.lines(({"a": "\n"}, {"b": 1}))
    assert (body.content_type, body.data) == ("application/x-ndjson", b'{"a":"\\n"}\n{"b":1}\n')
    assert ollama.error(Overloaded("why")).data == b'{"error":"why"}\n'


def test_times() -> None:
    assert ollama.timestamp(0) == "1970-01-01T00:00:00Z"
    assert ollama.timestamp().endswith("Z")
