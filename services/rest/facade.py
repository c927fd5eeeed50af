"""The wrapper of every method of a REST facade: that of every RPC, but errors are always OpenAI's."""

from __future__ import annotations

from collections.abc import Callable

from services.auth.identity import INFERENCE
from services.rest.openai import sse
from services.rpc.call import Handler, Method, Q, R, S, wrapper


def facade(
    seconds: float | None = None, *, scope: str = INFERENCE, operation: str = ""
) -> Callable[[Method[S, Q, R]], Handler[S, Q, R]]:
    """Wraps a method of a REST facade; an error after the first message becomes a server-sent event."""
    return wrapper(seconds, scope, operation, in_band=sse.error)
