"""Traces by OpenTelemetry, sent with OTLP over gRPC. Needs the extra `traces`; imported only if traces are enabled."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib import metadata as packages

import grpc
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.settings.setting import SettingError
from services.settings.trace_settings import TraceSettings
from services.telemetry.span import Attributes, Span
from services.telemetry.span_queue import SpanQueue

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


class OtlpSpan:
    """A span, with the clock of its trace."""

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
        """The span's `traceparent` header."""
        context = self._span.get_span_context()
        return f"00-{self.trace_id}-{api.format_span_id(context.span_id)}-{context.trace_flags:02x}"

    def set(self, attributes: Attributes) -> None:
        """Sets attributes."""
        self._span.set_attributes(attributes)

    def child(self, name: str, started: float, cause: Span | None = None) -> OtlpSpan:
        """Starts a child span, linked to `cause` if given."""
        links = [api.Link(cause._span.get_span_context())] if isinstance(cause, OtlpSpan) else []
        span = self._tracer.start_span(
            name, api.set_span_in_context(self._span), start_time=self._clock.wall(started), links=links
        )
        return OtlpSpan(self._tracer, span, self._clock)

    def end(self, ended: float, problem: str = "", fault: bool = False) -> None:
        """Ends the span."""
        if problem:
            self._span.set_attribute("error.type", problem)
        if fault:
            self._span.set_status(api.StatusCode.ERROR)
        self._span.end(self._clock.wall(ended))


class OtlpTracer:
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

    def root(self, name: str, started: float) -> OtlpSpan:
        """Starts the span of a new trace."""
        clock = Clock()
        return OtlpSpan(self._tracer, self._tracer.start_span(name, start_time=clock.wall(started)), clock)

    def server(self, name: str, started: float, metadata: Mapping[str, str | bytes]) -> OtlpSpan:
        """Starts the span of an RPC, as a child of the span in its metadata."""
        clock = Clock()
        parent = self._propagator.extract(metadata)
        span = self._tracer.start_span(name, parent, api.SpanKind.SERVER, start_time=clock.wall(started))
        return OtlpSpan(self._tracer, span, clock)

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
