"""Tracing of requests: the spans of all services. `otlp.py` implements them.

This module imports nothing of OpenTelemetry. Without traces `tracer` is None, and checking that is the only cost.
Times are seconds on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.errors import AllmError
from services.settings.setting import SettingError
from services.settings.trace_settings import ENDPOINT, EXTRA, TraceSettings
from services.telemetry import logs

if TYPE_CHECKING:  # OpenTelemetry is an extra of its own
    from services.telemetry.otlp import Attributes, Span, Tracer

SERVER_FAULT = 500
# Names of OpenTelemetry's conventions for generative AI; other names begin with `allm.`.
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
AUDIO_SECONDS = "allm.audio.seconds"
IMAGES = "allm.images"
STEPS = "allm.steps"
STUB_MODULE = "_pb2_grpc"


@dataclass(slots=True)
class UsageFacts:
    """The usage of an RPC's requests, under OpenTelemetry's names."""

    totals: dict[str, float] = field(default_factory=dict)

    def add(self, counts: Mapping[str, float]) -> None:
        """Adds counts. Input tokens count once, because several answers to one prompt share it."""
        for name, count in counts.items():
            before = self.totals.get(name, 0)
            self.totals[name] = max(before, count) if "input_tokens" in name else before + count


@dataclass(slots=True)
class Trace:
    """An RPC's part of a trace."""

    span: Span
    usage: UsageFacts = field(default_factory=UsageFacts)


tracer: Tracer | None = None  # set once at the start of the process; None: no traces
_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)


def start(settings: TraceSettings, service: str, replica: str) -> Callable[[float], None]:
    """Starts tracing if it is enabled; returns a function that stops it within the given number of seconds.

    `service`: such as allm-text; `replica`: this process's unique name.

    Raises:
        SettingError: tracing is enabled, but the extra is not installed, or a file cannot be used.
    """
    global tracer  # noqa: PLW0603 (one for the process, so that looking whether there is any costs nothing)
    if not settings.wanted:
        return lambda _: None
    try:
        from services.telemetry.otlp import Tracer  # noqa: PLC0415 (an extra of its own)
    except ModuleNotFoundError as error:
        raise SettingError(ENDPOINT, "...", EXTRA) from error
    made = Tracer(settings, service, replica)
    tracer = made

    def stop(seconds: float) -> None:
        global tracer  # noqa: PLW0603
        tracer = None
        made.close(seconds)

    return stop


def current() -> Trace | None:
    """Returns the trace of the current RPC, if any."""
    return _CURRENT.get() if tracer else None


def outgoing() -> tuple[tuple[str, str], ...]:
    """Returns metadata for calls on behalf of the current RPC: they continue its trace and request id."""
    trace = current()
    return (("traceparent", trace.span.header), ("x-request-id", logs.request_id.get())) if trace else ()


def begin(
    servicer: object, method: str, started: float, metadata: Mapping[str, str | bytes], operation: str
) -> Trace | None:
    """Starts the span of an RPC and makes it the current one; returns None without tracing.

    `operation`: the kind of inference, in the words of OpenTelemetry's conventions; empty: no inference.
    """
    if tracer is None:
        return None
    kind: type = type(servicer)
    name = full_name(kind, method)
    trace = Trace(tracer.server(name, started, metadata))
    trace.span.set({"rpc.system.name": "grpc", "rpc.method": name})
    if operation:
        trace.span.set({"gen_ai.operation.name": operation, "gen_ai.provider.name": "allm"})
    _CURRENT.set(trace)
    logs.trace_id.set(trace.span.trace_id)
    return trace


def finish(trace: Trace, attributes: Attributes, model: str, error: AllmError | None) -> None:
    """Ends an RPC's span. Records an error's code, never its message, which may quote the request."""
    status = error.grpc_status.name if error else "OK"
    trace.span.set({**attributes, "rpc.response.status_code": status, **trace.usage.totals})
    if model:
        trace.span.set({"gen_ai.request.model": model, "gen_ai.response.model": model})
    trace.span.end(time.monotonic(), error.code if error else "", bool(error and error.http_status >= SERVER_FAULT))


def record_phases(
    phases: Sequence[tuple[str, float]], ended: float | None, counts: Mapping[str, float], problem: str
) -> None:
    """Records a span for each phase of a request, until the start of the next one; the last until `ended`, or now.

    The last span gets `counts` and `problem`, the error code.
    """
    trace = current()
    if trace is None:
        return
    trace.usage.add(counts)
    ends = [*(at for _, at in phases[1:]), time.monotonic() if ended is None else ended]
    for number, ((name, started), end) in enumerate(zip(phases, ends, strict=True), 1):
        last = number == len(phases)
        span = trace.span.child(name, started)
        if last:
            span.set(counts)
        span.end(max(started, end), problem if last else "")


def open_span(name: str, attributes: Attributes) -> Span | None:
    """Starts a span that the caller ends: a child of the current one, or a new trace. Returns None without tracing."""
    if tracer is None:
        return None
    trace, now = current(), time.monotonic()
    span = trace.span.child(name, now) if trace else tracer.root(name, now)
    span.set(attributes)
    return span


@contextmanager
def part(name: str, cause: Span | None = None) -> Iterator[None]:
    """Records the block as a child of the current span, if any. `cause`: a span that the block waits for."""
    trace = current()
    if trace is None:
        yield
        return
    span = trace.span.child(name, time.monotonic(), cause)
    problem = "CANCELLED"  # for a BaseException that is no Exception
    try:
        yield
        problem = ""
    except AllmError as error:
        problem = error.code
        raise
    except Exception:
        problem = "INTERNAL"
        raise
    finally:
        span.end(time.monotonic(), problem)


@functools.cache
def full_name(servicer: type, method: str) -> str:
    """Returns `allm.text.v1.ChatService/CreateChatCompletion`, by the service's generated class."""
    for base in servicer.__mro__:
        if base.__module__.endswith(STUB_MODULE) and method in vars(base):
            package = base.__module__.rpartition(".")[0]
            return f"{package}.{base.__name__.removesuffix('Servicer')}/{method}"
    return f"{servicer.__name__}/{method}"
