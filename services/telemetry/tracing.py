"""What a request's time was spent on, as spans of a trace. Here is what all services say of it; `otlp.py` makes spans.

Nothing of OpenTelemetry is imported here. Where no traces are wanted `tracer` is None, and that is all that is looked
at. Times are seconds on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from services.errors import AllmError
from services.settings.setting_reader import SettingError
from services.settings.trace_settings import ENDPOINT, EXTRA, TraceSettings
from services.telemetry import logs

Value = str | int | float | bool
Attributes = Mapping[str, Value]
SERVER_FAULT = 500
# Of OpenTelemetry's conventions for generative AI; what these have no name for begins with `allm.`.
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
AUDIO_SECONDS = "allm.audio.seconds"
IMAGES = "allm.images"
STEPS = "allm.steps"
STUB_MODULE = "_pb2_grpc"


class Span(Protocol):
    """A span that runs."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""

    @property
    def header(self) -> str:
        """Its `traceparent`, for whom is asked on its behalf."""

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""

    def child(self, name: str, started: float, cause: Span | None = None) -> Span:
        """Begins a span below this one. `cause`: a span of another trace that it waits for."""

    def end(self, ended: float, problem: str = "", fault: bool = False) -> None:
        """Ends it, once. `problem`: the code of what went wrong; `fault`: whether that was ours."""


class Tracer(Protocol):
    """Begins traces."""

    def root(self, name: str, started: float) -> Span:
        """A span of a new trace."""

    def server(self, name: str, started: float, metadata: Mapping[str, str | bytes]) -> Span:
        """The span of an RPC, below the one that its metadata name."""


@dataclass(slots=True)
class Usage:
    """What the requests of an RPC have taken, in OpenTelemetry's words."""

    totals: dict[str, float] = field(default_factory=dict)

    def add(self, counts: Mapping[str, float]) -> None:
        """Several answers to one prompt read it once: input counts once, everything else each time."""
        for name, count in counts.items():
            before = self.totals.get(name, 0)
            self.totals[name] = max(before, count) if "input_tokens" in name else before + count


@dataclass(slots=True)
class Trace:
    """The part of a trace that an RPC is here."""

    span: Span
    usage: Usage = field(default_factory=Usage)


tracer: Tracer | None = None  # set once, when the process starts; None: no traces
_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)


def start(settings: TraceSettings, service: str, replica: str) -> Callable[[float], None]:
    """Begins to make traces, if they are wanted; returns what ends that, which may take so many seconds.

    `service`: such as allm-text; `replica`: this process among all of them.

    Raises:
        SettingError: they are wanted, but the extra is not installed, or a file cannot be used.
    """
    global tracer  # noqa: PLW0603 (one for the process, so that looking whether there is any costs nothing)
    if not settings.wanted:
        return lambda _: None
    try:
        from services.telemetry.otlp import OtlpTracer  # noqa: PLC0415 (an extra of its own)
    except ModuleNotFoundError as error:
        raise SettingError(ENDPOINT, "...", EXTRA) from error
    made = OtlpTracer(settings, service, replica)
    tracer = made

    def stop(seconds: float) -> None:
        global tracer  # noqa: PLW0603
        tracer = None
        made.close(seconds)

    return stop


def current() -> Trace | None:
    """The trace of the RPC that this is done for, if there is one."""
    return _CURRENT.get() if tracer else None


def outgoing() -> tuple[tuple[str, str], ...]:
    """Metadata for a service that is asked on behalf of the current RPC: it goes on with trace and request id."""
    trace = current()
    return (("traceparent", trace.span.header), ("x-request-id", logs.request_id.get())) if trace else ()


def begin(
    servicer: object, method: str, started: float, metadata: Mapping[str, str | bytes], operation: str
) -> Trace | None:
    """Begins the span of an RPC, from here on the current one; None where no traces are wanted.

    `operation`: what it infers, in the words of OpenTelemetry's conventions; empty for what does not infer.
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
    """Ends the span of an RPC. Of an error its code is told, never its message, which may quote the request."""
    status = error.grpc_status.name if error else "OK"
    trace.span.set({**attributes, "rpc.response.status_code": status, **trace.usage.totals})
    if model:
        trace.span.set({"gen_ai.request.model": model, "gen_ai.response.model": model})
    trace.span.end(time.monotonic(), error.code if error else "", bool(error and error.http_status >= SERVER_FAULT))


def tell_phases(
    phases: Sequence[tuple[str, float]], ended: float | None, counts: Mapping[str, float], problem: str
) -> None:
    """Makes a span of each phase of a request: it lasts until the next one begins, the last one until `ended`, or now.

    `problem`, the code of what went wrong, and `counts` are the last one's.
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
    """Begins a span that others end: below the current one, or of a trace of its own. None: there are no traces."""
    if tracer is None:
        return None
    trace, now = current(), time.monotonic()
    span = trace.span.child(name, now) if trace else tracer.root(name, now)
    span.set(attributes)
    return span


@contextmanager
def part(name: str, cause: Span | None = None) -> Iterator[None]:
    """A span as long as the block, below the current one if there is one. `cause`: what it waits for."""
    trace = current()
    if trace is None:
        yield
        return
    span = trace.span.child(name, time.monotonic(), cause)
    problem = "CANCELLED"  # what ends the block is no Exception then
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
    """`allm.text.v1.ChatService/CreateChatCompletion`, by the class that was generated for the service."""
    for base in servicer.__mro__:
        if base.__module__.endswith(STUB_MODULE) and method in vars(base):
            package = base.__module__.rpartition(".")[0]
            return f"{package}.{base.__name__.removesuffix('Servicer')}/{method}"
    return f"{servicer.__name__}/{method}"
