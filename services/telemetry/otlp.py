"""Traces by OpenTelemetry, sent with OTLP over gRPC. Needs the extra `traces`; imported only if traces are enabled.

Finished spans wait in a bounded queue for a thread that sends batches to the collector: a request never waits for a
collector. Spans are dropped and counted when the queue is full or sending fails.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from importlib import metadata as packages

import grpc
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.settings.setting import SettingError
from services.settings.trace_settings import TraceSettings
from services.telemetry import metrics

log = logging.getLogger(__name__)

Attributes = Mapping[str, str | int | float | bool]

QUEUE_SPANS = 8192
BATCH_SPANS = 512
BATCH_SECONDS = 1.0  # how long a span may wait for more


class SpanQueue(SpanProcessor):
    """A span processor that passes finished spans to an exporter in batches."""

    def __init__(self, exporter: SpanExporter, limit: int = QUEUE_SPANS, seconds: float = BATCH_SECONDS) -> None:
        """`limit`: spans that may wait; `seconds`: the interval between incomplete batches."""
        self._exporter = exporter
        self._limit = limit
        self._seconds = seconds
        self._spans: deque[ReadableSpan] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._reaches = True  # whether the last batch has arrived
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Does nothing: running spans are not sent."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queues a span; never waits."""
        if not span.context.trace_flags.sampled:
            return
        with self._changed:
            if self._closed or len(self._spans) >= self._limit:
                metrics.SPANS_DROPPED.labels("queue_full").inc()
                return
            self._spans.append(span)
            if len(self._spans) == BATCH_SPANS:
                self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Sends the queued spans, for at most `seconds`; drops the rest."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)
        self._exporter.shutdown()  # aborts a running export
        with self._changed:
            self._drop(len(self._spans), "shutdown")
            self._spans.clear()

    def _run(self) -> None:
        while batch := self._next():
            try:
                arrived = self._exporter.export(batch) is SpanExportResult.SUCCESS
            except Exception:
                log.exception("unexpected error while sending traces")
                arrived = False
            self._note(len(batch), arrived)

    def _next(self) -> list[ReadableSpan]:
        """Waits for the next batch; returns an empty one at the end."""
        with self._changed:
            while not self._spans:
                if self._closed:
                    return []
                self._changed.wait_for(lambda: self._closed or len(self._spans) >= BATCH_SPANS, self._seconds)
            return [self._spans.popleft() for _ in range(min(BATCH_SPANS, len(self._spans)))]

    def _note(self, count: int, arrived: bool) -> None:
        """Counts a batch; logs once that the collector is away, and once that it is back."""
        if arrived:
            metrics.SPANS_SENT.inc(count)
        else:
            self._drop(count, "not_sent")
        if self._reaches and not arrived:
            log.warning("traces do not reach the collector (ALLM_OTLP_ENDPOINT): they are dropped until they do")
        elif arrived and not self._reaches:
            log.info("traces reach the collector again")
        self._reaches = arrived

    def _drop(self, count: int, reason: str) -> None:
        metrics.SPANS_DROPPED.labels(reason).inc(count)


EXPORT_SECONDS = 5.0  # for sending a batch, including retries
NANOSECONDS = 1_000_000_000
MOST_ATTRIBUTES = 64  # per span; below, characters per attribute
MOST_CHARACTERS = 256


class Clock:
    """A converter from monotonic times to the wall clock times that spans have.

    One offset, measured when the trace begins here, applies to the whole trace: its spans keep their order and
    lengths, even if the wall clock is set meanwhile.
    """

    def __init__(self) -> None:
        # Reads the wall clock between two monotonic readings: their mean matches it despite interruptions.
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        self._ahead = wall - (before + after) // 2

    def wall(self, at: float) -> int:
        """Converts monotonic seconds to nanoseconds since the epoch."""
        return round(at * NANOSECONDS) + self._ahead


class Span:
    """A running span, with the clock of its trace. Times are seconds on the monotonic clock."""

    def __init__(self, tracer: api.Tracer, span: api.Span, clock: Clock) -> None:
        self._tracer = tracer
        self._span = span
        self._clock = clock

    @property
    def trace_id(self) -> str:
        """The trace id, in 32 hexadecimal digits."""
        return api.format_trace_id(self._span.get_span_context().trace_id)

    @property
    def header(self) -> str:
        """Its `traceparent` header, for calls on its behalf."""
        context = self._span.get_span_context()
        return f"00-{self.trace_id}-{api.format_span_id(context.span_id)}-{context.trace_flags:02x}"

    def set(self, attributes: Attributes) -> None:
        """Sets attributes."""
        self._span.set_attributes(attributes)

    def child(self, name: str, started: float, cause: Span | None = None) -> Span:
        """Starts a child span. `cause`: a span of another trace that it waits for."""
        links = [api.Link(cause._span.get_span_context())] if cause else []
        span = self._tracer.start_span(
            name, api.set_span_in_context(self._span), start_time=self._clock.wall(started), links=links
        )
        return Span(self._tracer, span, self._clock)

    def end(self, ended: float, problem: str = "", fault: bool = False) -> None:
        """Ends the span; call it once. `problem`: the error code; `fault`: whether the error is allm's fault."""
        if problem:
            self._span.set_attribute("error.type", problem)
        if fault:
            self._span.set_status(api.StatusCode.ERROR)
        self._span.end(self._clock.wall(ended))


class Tracer:
    """The factory of spans, with the queue that sends them."""

    def __init__(self, settings: TraceSettings, service: str, replica: str) -> None:
        """`service`: such as allm-text; `replica`: this process's unique name. Raises SettingError."""
        # OpenTelemetry would log every retry; the queue logs when the collector goes away and comes back.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        resource = Resource.create(
            {
                "service.name": service,
                "service.version": packages.version("allm-server"),
                "service.instance.id": replica,
            }
        )
        self._queue = SpanQueue(_exporter(settings))
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sampling)),
            resource=resource,
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attributes=MOST_ATTRIBUTES, max_span_attribute_length=MOST_CHARACTERS),
        )
        provider.add_span_processor(self._queue)
        self._tracer = provider.get_tracer("allm")
        self._propagator = TraceContextTextMapPropagator()

    def root(self, name: str, started: float) -> Span:
        """Starts the span of a new trace."""
        clock = Clock()
        return Span(self._tracer, self._tracer.start_span(name, start_time=clock.wall(started)), clock)

    def server(self, name: str, started: float, metadata: Mapping[str, str | bytes]) -> Span:
        """Starts the span of an RPC, as a child of the span in its metadata."""
        clock = Clock()
        parent = self._propagator.extract(metadata)
        span = self._tracer.start_span(name, parent, api.SpanKind.SERVER, start_time=clock.wall(started))
        return Span(self._tracer, span, clock)

    def close(self, seconds: float) -> None:
        """Sends the queued spans, for at most `seconds`."""
        self._queue.close(seconds)


def _exporter(settings: TraceSettings) -> OTLPSpanExporter:
    host, port, tls = settings.collector
    host = f"[{host}]" if ":" in host else host
    return OTLPSpanExporter(
        endpoint=f"{'https' if tls else 'http'}://{host}:{port}",
        insecure=not tls,
        credentials=_credentials(settings) if tls else None,
        headers=settings.headers,
        timeout=EXPORT_SECONDS,
    )


def _credentials(settings: TraceSettings) -> grpc.ChannelCredentials:
    path = settings.authorities
    try:
        return grpc.ssl_channel_credentials(path.read_bytes())
    except OSError as error:
        allowed = f"a PEM file that can be read ({error.strerror})"
        raise SettingError("ALLM_OTLP_CA_FILE", str(path), allowed) from error
