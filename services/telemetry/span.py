"""The interface of spans: tracing.py uses it, and otlp.py implements it with OpenTelemetry.

Times are seconds on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Value = str | int | float | bool
Attributes = Mapping[str, Value]


class Span(Protocol):
    """A running span."""

    @property
    def trace_id(self) -> str:
        """The trace id, in 32 hexadecimal digits."""

    @property
    def header(self) -> str:
        """Its `traceparent` header, for calls on its behalf."""

    def set(self, attributes: Attributes) -> None:
        """Sets attributes."""

    def child(self, name: str, started: float, cause: Span | None = None) -> Span:
        """Starts a child span. `cause`: a span of another trace that it waits for."""

    def end(self, ended: float, problem: str = "", fault: bool = False) -> None:
        """Ends the span; call it once. `problem`: the error code; `fault`: whether the error is allm's fault."""


class Tracer(Protocol):
    """A factory of traces."""

    def root(self, name: str, started: float) -> Span:
        """Starts the span of a new trace."""

    def server(self, name: str, started: float, metadata: Mapping[str, str | bytes]) -> Span:
        """Starts the span of an RPC, as a child of the span in its metadata."""
