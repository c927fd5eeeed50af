"""Server-sent events as OpenAI writes them, in google.api.HttpBody messages.

Every HttpBody leaves the gateway at once; the first one's content type becomes the response's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from google.api import httpbody_pb2

from services.errors import AllmError

EVENT_STREAM = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def data(value: Any) -> bytes:
    """One event that has only data."""
    return b"data: " + _encode(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """One event with a name; `name` holds no line break."""
    return b"event: " + name.encode() + b"\n" + data(value)


def body(events: Iterable[bytes]) -> httpbody_pb2.HttpBody:
    """Events that are ready together, as one message."""
    return httpbody_pb2.HttpBody(content_type=EVENT_STREAM, data=b"".join(events))


def error(problem: AllmError) -> httpbody_pb2.HttpBody:
    """An error inside a stream: official SDKs raise it as an API error."""
    return body((data({"error": problem.openai_object()}),))
