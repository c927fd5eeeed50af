"""Ollama's conventions: times, newline-delimited JSON, and the wrapper of the facades.

Before the first message an error travels as in every facade, and the gateway (error_shapes.lua) writes Ollama's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from google.api import httpbody_pb2

from services.auth.identity import INFERENCE
from services.errors import AllmError
from services.rpc.call import Handler, Method, Q, R, S, wrapper

NDJSON = "application/x-ndjson"
_encode = msgspec.json.Encoder().encode


def timestamp(seconds: float | None = None) -> str:
    """Returns a time, in seconds since the epoch; None: now."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat().replace("+00:00", "Z")


def lines(values: Iterable[dict[str, Any]]) -> httpbody_pb2.HttpBody:
    """Returns one message with all lines that are ready."""
    return httpbody_pb2.HttpBody(content_type=NDJSON, data=b"".join(_encode(value) + b"\n" for value in values))


def error(problem: AllmError) -> httpbody_pb2.HttpBody:
    """Returns an error within a stream: official clients raise it."""
    return lines(({"error": problem.message},))


def facade(
    seconds: float | None = None, *, scope: str = INFERENCE, operation: str = ""
) -> Callable[[Method[S, Q, R]], Handler[S, Q, R]]:
    """Wraps a method of a facade of Ollama's; an error after the first message becomes a line of the stream."""
    return wrapper(seconds, scope, operation, in_band=error)
