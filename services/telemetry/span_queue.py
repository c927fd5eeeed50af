"""The queue of finished spans: bounded, with a thread that sends batches to the collector.

A request never waits for a collector. Spans are dropped and counted when the queue is full or sending fails. Only
`otlp.py` imports this module: it needs the extra `traces`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from services.telemetry import metrics

log = logging.getLogger(__name__)

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

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
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
