"""Errors in Anthropic's format, and the wrapper of the facades that write it.

Before the first message an error travels as in every facade, and the gateway (anthropic.lua) writes Anthropic's shape.
"""

from __future__ import annotations

from collections.abc import Callable

from google.api import httpbody_pb2

from services.auth.identity import INFERENCE
from services.errors import AllmError, Overloaded, Timeout
from services.rest.openai import sse
from services.rpc.call import Handler, Method, Q, R, S, wrapper

VERSION_HEADER = "anthropic-version"  # all requests of Anthropic's SDKs have it
_SERVER_FAULT = 500


def error(problem: AllmError) -> httpbody_pb2.HttpBody:
    """Returns an error within a stream: official SDKs raise it as an API error."""
    kind = "api_error" if problem.http_status >= _SERVER_FAULT else "invalid_request_error"
    if isinstance(problem, Overloaded):
        kind = "overloaded_error"
    elif isinstance(problem, Timeout):
        kind = "timeout_error"
    return sse.body((sse.event("error", {"type": "error", "error": {"type": kind, "message": problem.message}}),))


def facade(*, scope: str = INFERENCE, operation: str = "") -> Callable[[Method[S, Q, R]], Handler[S, Q, R]]:
    """Wraps a method of a facade of Anthropic's; an error after the first message becomes a server-sent event."""
    return wrapper(None, scope, operation, in_band=error)
