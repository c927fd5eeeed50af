"""The span queue: batches, bounded memory, and no waiting for a collector."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from prometheus_client import REGISTRY

from services.telemetry.otlp import BATCH_SPANS, SpanQueue

LONG = 3600.0  # seconds between batches; never passes in a test


class Scripted(SpanExporter):
    """An exporter that accepts batches while the gate is open."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.result = result
        self.batches: list[Sequence[ReadableSpan]] = []
        self.gate = threading.Event()
        self.busy = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.busy.set()
        self.gate.wait(30)
        self.batches.append(spans)
        return self.result

    def shutdown(self) -> None:
        self.gate.set()


@pytest.fixture
def exporter() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.gate.set()


def provider_of(queue: SpanQueue, **more: object) -> Callable[[int], None]:
    """Returns a function that starts and immediately ends `count` spans."""
    provider = TracerProvider(shutdown_on_exit=False, **more)
    provider.add_span_processor(queue)
    tracer = provider.get_tracer("test")

    def make(count: int) -> None:
        for number in range(count):
            tracer.start_span(str(number)).end()

    return make


def dropped(reason: str) -> float:
    return REGISTRY.get_sample_value("allm_trace_spans_dropped_total", {"reason": reason}) or 0.0


def sent() -> float:
    return REGISTRY.get_sample_value("allm_trace_spans_sent_total") or 0.0


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_spans_go_out_in_batches_as_soon_as_one_is_full(exporter: Scripted) -> None:
    exporter.gate.set()
    queue, before = SpanQueue(exporter, seconds=LONG), sent()
    provider_of(queue)(BATCH_SPANS)
    until(lambda: sent() == before + BATCH_SPANS)
    assert [len(batch) for batch in exporter.batches] == [BATCH_SPANS]
    queue.close(30)


def test_a_lone_span_waits_for_company_for_a_moment_only(exporter: Scripted) -> None:
    exporter.gate.set()
    queue = SpanQueue(exporter, seconds=0.01)
    provider_of(queue)(1)
    until(lambda: [len(batch) for batch in exporter.batches] == [1])
    queue.close(30)


def test_closing_sends_the_remaining_spans(exporter: Scripted) -> None:
    exporter.gate.set()
    queue = SpanQueue(exporter, seconds=LONG)
    make = provider_of(queue)
    make(3)
    queue.close(30)
    assert [len(batch) for batch in exporter.batches] == [3]
    late = dropped("queue_full")
    make(1)
    assert dropped("queue_full") == late + 1, "nobody would send it any more"


def test_full_queue_drops_and_counts(exporter: Scripted) -> None:
    queue = SpanQueue(exporter, limit=10, seconds=0.01)
    make = provider_of(queue)
    make(1)
    assert exporter.busy.wait(30)  # the collector hangs from here on
    before = dropped("queue_full")
    make(25)
    assert dropped("queue_full") == before + 15
    exporter.gate.set()
    queue.close(30)
    assert sum(map(len, exporter.batches)) == 11


def test_closing_has_a_time_limit(exporter: Scripted) -> None:
    queue = SpanQueue(exporter, seconds=0.01)
    make = provider_of(queue)
    make(1)
    assert exporter.busy.wait(30)
    make(2)
    before = dropped("shutdown")
    queue.close(0.05)  # would hang for the exporter's 30 seconds
    assert dropped("shutdown") == before + 2


def test_unreachable_collector_is_logged_once_and_loses_only_spans(
    exporter: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    exporter.gate.set()
    exporter.result = SpanExportResult.FAILURE
    queue, before, arrived = SpanQueue(exporter, seconds=0.01), dropped("not_sent"), sent()
    make = provider_of(queue)
    for at in (1, 2):
        make(1)
        until(lambda at=at: dropped("not_sent") == before + at)
    exporter.result = SpanExportResult.SUCCESS
    make(1)
    until(lambda: sent() == arrived + 1)
    queue.close(30)
    reported = [record.getMessage() for record in caplog.records if record.name == "services.telemetry.otlp"]
    assert [("ALLM_OTLP_ENDPOINT" in line, "again" in line) for line in reported] == [(True, False), (False, True)]


def test_unsampled_traces_are_not_sent(exporter: Scripted) -> None:
    exporter.gate.set()
    queue = SpanQueue(exporter, seconds=LONG)
    provider_of(queue, sampler=ALWAYS_OFF)(3)
    queue.close(30)
    assert not exporter.batches
