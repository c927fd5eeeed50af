"""Errors within a stream, in Anthropic's format."""

from __future__ import annotations

import msgspec
import pytest

from services.errors import AllmError, Cancelled, Internal, InvalidRequest, ModelNotReady, Overloaded, Timeout
from services.rest import anthropic


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("why"), "invalid_request_error"),
        (Overloaded("why"), "overloaded_error"),
        (Timeout("why"), "timeout_error"),
        (Internal("why"), "api_error"),
        (ModelNotReady("why"), "api_error"),
        (Cancelled("why"), "invalid_request_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors(error: AllmError, kind: str) -> None:
    body = anthropic.error(error)
    assert body.content_type.startswith("text/event-stream")
    name, data, end = body.data.split(b"\n", 2)
    assert (name, end) == (b"event: error", b"\n")
    shown = {"type": "error", "error": {"type": kind, "message": "why"}}
    assert msgspec.json.decode(data.removeprefix(b"data: ")) == shown
