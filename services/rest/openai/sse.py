"""Server-sent events in OpenAI's format, in google.api.HttpBody messages, and the wrapper of REST facades.

The gateway forwards every HttpBody immediately; the first one's content type becomes the response's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from google.api import httpbody_pb2

from services.auth.identity import INFERENCE
from services.errors import AllmError
from services.rpc.call import Handler, Method, Q, R, S, wrapper

EVENT_STREAM = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"
BLOCK = 64  # obfuscated events have a multiple of so many bytes, apart from the frame
_encode = msgspec.json.Encoder().encode


def data(value: Any) -> bytes:
    """Returns an event that has only data."""
    return b"data: " + _encode(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """Returns an event with a name; `name` contains no line break."""
    return b"event: " + name.encode() + b"\n" + data(value)


def obfuscated(value: dict[str, Any]) -> dict[str, Any]:
    """Adds random text to an event, so that its length does not tell that of its content; see BLOCK."""
    padding = BLOCK - len(_encode(value)) % BLOCK
    return {**value, "obfuscation": secrets.token_urlsafe(padding)[:padding]}


def body(events: Iterable[bytes]) -> httpbody_pb2.HttpBody:
    """Returns one message with all events that are ready."""
    return httpbody_pb2.HttpBody(content_type=EVENT_STREAM, data=b"".join(events))


def error(problem: AllmError) -> httpbody_pb2.HttpBody:
    """Returns an error within a stream: official SDKs raise it as an API error."""
    return body((data({"error": problem.openai_object()}),))


def facade(
    seconds: float | None = None, *, scope: str = INFERENCE, operation: str = ""
) -> Callable[[Method[S, Q, R]], Handler[S, Q, R]]:
    """Wraps a method of a REST facade; an error after the first message becomes a server-sent event."""
    return wrapper(seconds, scope, operation, in_band=error)
