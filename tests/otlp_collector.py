"""A trace collector on loopback: receives OTLP from services and gateway, and arranges the spans as trees."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

WAIT_SECONDS = 60


@dataclass(frozen=True)
class Seen:
    """A span that was received."""

    service: str
    resource: dict[str, Any]
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    started: int  # nanoseconds since 1970
    ended: int
    attributes: dict[str, Any]
    links: list[str]  # ids of spans
    failed: bool
    message: str

    @property
    def text(self) -> str:
        """Returns all its text."""
        return f"{self.name} {self.resource} {self.attributes} {self.message}"


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """The collector, with all spans so far."""

    spans: list[Seen] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)  # of every batch
    port: int = 0
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    def Export(self, request, context):  # noqa: N802
        with self._arrived:
            self.metadata.append(dict(context.invocation_metadata()))
            for of_resource in request.resource_spans:
                resource = _values(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    self.spans += [_seen(resource, span) for span in of_scope.spans]
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait(self, wanted, seconds: float = WAIT_SECONDS) -> Any:
        """Waits until `wanted` of all spans returns a true value, and returns that."""
        ends = time.monotonic() + seconds
        with self._arrived:
            while not (found := wanted(list(self.spans))):
                left = ends - time.monotonic()
                assert left > 0, [f"{span.service}: {span.name} {span.attributes}" for span in self.spans]
                self._arrived.wait(left)
        return found

    def trace(self, request_id: str, *names: str) -> Trace:
        """Waits until the trace of a request holds spans of all these names."""

        def whole(spans: list[Seen]) -> Trace | None:
            ids = {span.trace_id for span in spans if span.attributes.get("allm.request_id") == request_id}
            assert len(ids) <= 1, "one request, one trace"
            trace = Trace([span for span in spans if span.trace_id in ids])
            return trace if ids and set(names) <= {span.name for span in trace.spans} else None

        found: Trace = self.wait(whole)
        return found


@dataclass(frozen=True)
class Trace:
    """The spans of one trace."""

    spans: list[Seen]

    def one(self, name: str) -> Seen:
        """Returns the only span of that name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def all(self, name: str) -> list[Seen]:
        """Returns all spans of that name, in order."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.started)

    def parent(self, span: Seen) -> Seen | None:
        """Returns the parent of a span; None: it is the root. Fails when the parent has not arrived."""
        if not span.parent_id:
            return None
        (found,) = [each for each in self.spans if each.span_id == span.parent_id]
        return found

    def path(self, span: Seen) -> list[str]:
        """Returns the names from the root down to the span."""
        above = self.parent(span)
        return [*(self.path(above) if above else []), span.name]


@contextmanager
def collecting(credentials: grpc.ServerCredentials | None = None) -> Iterator[Collector]:
    """Runs a collector until the block ends."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    address = "127.0.0.1:0"
    collector.port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


def _seen(resource: dict[str, Any], span: trace_pb2.Span) -> Seen:
    return Seen(
        service=resource.get("service.name", ""),
        resource=resource,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        started=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        links=[link.span_id.hex() for link in span.links],
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        message=span.status.message,
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: common_pb2.AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None
