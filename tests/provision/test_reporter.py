"""A replica's own figures: its metrics, its monitor's readings, its events."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.provision.reporter import FigureReader, by_model
from services.residency.memory.device_memory import DeviceMemory
from services.residency.memory.host_memory import HostMemory
from services.residency.memory.readings import MemorySnapshot
from services.telemetry import metrics
from services.telemetry.figures import DeviceFigures, ModelEvents, ModelFigures, ModelLatencies
from services.telemetry.metrics import model_metrics

MODEL = "figures/m"
GIB = 1024**3
SEEN = MemorySnapshot(
    HostMemory(10 * GIB, 4 * GIB, "cgroup v2", "cgroup 1:2"),
    (DeviceMemory("cuda:0", 8 * GIB, GIB, {}, "GPU-1"),),
    (),
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the metrics of other tests' models, as in a separate process."""
    for metric in model_metrics():
        monkeypatch.setattr(metric, "_metrics", {})


@pytest.fixture
def events() -> ModelEvents:
    return ModelEvents()


def reader(events: ModelEvents, folder: Path, latencies: ModelLatencies | None = None) -> FigureReader:
    boot = folder / "boot_id"
    boot.write_text("b00t\n")
    return FigureReader(lambda: SEEN, 0.8, events, latencies or ModelLatencies(), boot)


def test_unmeasured_figures_are_absent(events: ModelEvents, tmp_path: Path) -> None:
    found = reader(events, tmp_path).read()
    assert (found.running, found.waiting, found.counters, found.models) == (0, 0, {}, {})
    assert (found.latencies, found.events) == ((), ())


def test_figures_are_sums_over_models(events: ModelEvents, tmp_path: Path) -> None:
    labels = metrics.gen_ai(MODEL, "chat")
    for model in (MODEL, f"{MODEL}2"):
        metrics.GENERATED_TOKENS.labels(model).inc(7)
        metrics.RUNNING.labels(model).set(2)
        metrics.WAITING.labels(model).set(1)
    metrics.PROMPT_TOKENS.labels(MODEL)
    metrics.SERVER_DURATION.labels(*labels, "").observe(1.0)
    metrics.SERVER_DURATION.labels(*labels, "TIMEOUT").observe(500.0)
    metrics.SERVER_DURATION.labels(*metrics.gen_ai("", "chat"), "MODEL_NOT_FOUND").observe(0.1)
    found = reader(events, tmp_path).read()
    assert (found.running, found.waiting) == (4, 2)
    assert found.counters == {"requests": 3.0, "generated_tokens": 14.0, "prompt_tokens": 0.0}
    other = {"generated_tokens": 7.0}
    assert found.models == {
        MODEL: ModelFigures(running=2, waiting=1, counters={"requests": 2.0, "prompt_tokens": 0.0} | other),
        f"{MODEL}2": ModelFigures(running=2, waiting=1, counters=other),
    }


def test_memory_is_named_so_that_replicas_of_a_machine_agree(events: ModelEvents, tmp_path: Path) -> None:
    one, other = reader(events, tmp_path).read().host, reader(events, tmp_path).read().host
    assert one == other
    assert one
    assert (one.id, one.total, one.used, one.threshold) == ("b00t/cgroup 1:2", 10 * GIB, 4 * GIB, 0.8)
    assert one.name
    assert one.devices == (DeviceFigures(id="b00t/GPU-1", name="cuda:0", total=8 * GIB, used=GIB),)


def test_without_a_boot_id_the_host_has_its_name(events: ModelEvents, tmp_path: Path) -> None:
    host = FigureReader(lambda: SEEN, 0.8, events, boot=tmp_path / "nothing").read().host
    assert host
    assert host.id == f"{host.name}/cgroup 1:2"


def test_time_events_and_latencies_go_on(events: ModelEvents, tmp_path: Path) -> None:
    latencies = ModelLatencies()
    here = reader(events, tmp_path, latencies)
    first = here.read()
    events.record("loaded", MODEL)
    latencies.record("request", MODEL, 2.5)
    second = here.read()
    assert second.began == first.began
    assert second.uptime >= first.uptime >= 0
    assert [(number, event.model) for number, event in second.events] == [(1, MODEL)]
    assert [(number, latency.seconds) for number, latency in second.latencies] == [(1, 2.5)]
    last = here.read(event=1, latency=1)
    assert (last.events, last.latencies) == ((), ())


def test_sums_by_model() -> None:
    registry = CollectorRegistry()
    counter = Counter("c", "A counter.", ("model",), registry=registry)
    gauge = Gauge("g", "A gauge.", ("kind", "model"), registry=registry)
    times = Histogram("h", "Times.", ("model", "error"), buckets=(0.1, 1), registry=registry)
    assert by_model(counter) == {}, "there is nothing yet, which is not 0"
    counter.labels("a")
    assert by_model(counter) == {"a": 0}
    counter.labels("b").inc(0.5)
    for kind in ("x", "y"):
        gauge.labels(kind, "a").set(3)
    assert (by_model(counter), by_model(gauge)) == ({"a": 0, "b": 0.5}, {"a": 6})
    for model, error, value in (("a", "", 0.05), ("a", "", 0.5), ("b", "", 9), ("a", "TIMEOUT", 9)):
        times.labels(model, error).observe(value)
    assert by_model(times) == {"a": 3, "b": 1}
