"""A replica's own figures: its metrics, its monitor's readings, its events."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.models.descriptor import Modality
from services.provision.reporter import FigureReader, buckets, total
from services.residency.memory.device_memory import DeviceMemory
from services.residency.memory.host_memory import HostMemory
from services.residency.memory.readings import MemorySnapshot
from services.telemetry import metrics
from services.telemetry.figures import DeviceFigures, ModelEvents
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


def reader(events: ModelEvents, folder: Path, modality: Modality = "text") -> FigureReader:
    boot = folder / "boot_id"
    boot.write_text("b00t\n")
    return FigureReader(modality, lambda: SEEN, 0.8, events, boot)


def test_unmeasured_figures_are_absent(events: ModelEvents, tmp_path: Path) -> None:
    found = reader(events, tmp_path).read()
    assert (found.running, found.waiting, found.counters, found.times, found.events) == (0, 0, {}, {}, ())


def test_figures_are_sums_over_models(events: ModelEvents, tmp_path: Path) -> None:
    labels = metrics.gen_ai(MODEL, "chat")
    for model in (MODEL, f"{MODEL}2"):
        metrics.GENERATED_TOKENS.labels(model).inc(7)
        metrics.RUNNING.labels(model).set(2)
        metrics.WAITING.labels(model).set(1)
    metrics.PROMPT_TOKENS.labels(MODEL)
    metrics.FIRST_TOKEN.labels(*labels).observe(0.05)
    metrics.SERVER_DURATION.labels(*labels, "").observe(1.0)
    metrics.SERVER_DURATION.labels(*labels, "TIMEOUT").observe(500.0)
    found = reader(events, tmp_path).read()
    assert (found.running, found.waiting) == (4, 2)
    assert found.counters == {"generated_tokens": 14.0, "prompt_tokens": 0.0}
    assert set(found.times) == {"first_output", "request"}
    assert sum(found.times["first_output"].counts) == 1
    assert sum(found.times["request"].counts) == 1, "one that failed says nothing of how long an answer takes"
    assert len(found.times["request"].counts) == len(found.times["request"].bounds) + 1


@pytest.mark.parametrize("modality", ["audio", "image"])
def test_first_outputs_are_those_of_the_modality(events: ModelEvents, tmp_path: Path, modality: Modality) -> None:
    metrics.FIRST_TOKEN.labels(*metrics.gen_ai(MODEL, "chat")).observe(0.05)
    assert "first_output" not in reader(events, tmp_path, modality).read().times
    {"audio": metrics.FIRST_SEGMENT, "image": metrics.FIRST_IMAGE}[modality].labels(MODEL).observe(0.05)
    assert sum(reader(events, tmp_path, modality).read().times["first_output"].counts) == 1


def test_memory_is_named_so_that_replicas_of_a_machine_agree(events: ModelEvents, tmp_path: Path) -> None:
    one, other = reader(events, tmp_path).read().host, reader(events, tmp_path, "image").read().host
    assert one == other
    assert one
    assert (one.id, one.total, one.used, one.threshold) == ("b00t/cgroup 1:2", 10 * GIB, 4 * GIB, 0.8)
    assert one.name
    assert one.devices == (DeviceFigures(id="b00t/GPU-1", name="cuda:0", total=8 * GIB, used=GIB),)


def test_without_a_boot_id_the_host_has_its_name(events: ModelEvents, tmp_path: Path) -> None:
    host = FigureReader("text", lambda: SEEN, 0.8, events, tmp_path / "nothing").read().host
    assert host
    assert host.id == f"{host.name}/cgroup 1:2"


def test_time_and_events_go_on(events: ModelEvents, tmp_path: Path) -> None:
    here = reader(events, tmp_path)
    first = here.read()
    events.record("loaded", MODEL)
    second = here.read()
    assert second.began == first.began
    assert second.uptime >= first.uptime >= 0
    assert [(number, event.model) for number, event in second.events] == [(1, MODEL)]
    assert here.read(after=1).events == ()


def test_totals() -> None:
    registry = CollectorRegistry()
    counter = Counter("c", "A counter.", ("model",), registry=registry)
    gauge = Gauge("g", "A gauge.", ("model",), registry=registry)
    assert total(counter) is None, "there is nothing yet, which is not 0"
    counter.labels("a")
    assert total(counter) == 0
    counter.labels("a").inc(2)
    counter.labels("b").inc(0.5)
    gauge.labels("a").set(3)
    gauge.labels("b").set(4)
    assert (total(counter), total(gauge)) == (pytest.approx(2.5), 7)


def test_buckets_are_not_cumulative_and_the_last_has_no_end() -> None:
    times = Histogram("h", "Times.", ("model", "error"), buckets=(0.1, 1), registry=CollectorRegistry())
    assert buckets(times) is None
    for model, error, value in (("a", "", 0.05), ("a", "", 0.5), ("b", "", 0.5), ("b", "", 9), ("a", "TIMEOUT", 9)):
        times.labels(model, error).observe(value)
    assert buckets(times) == ((0.1, 1.0), (1, 2, 2))
    assert buckets(times, error="") == ((0.1, 1.0), (1, 2, 1))
    assert buckets(times, error="", model="a") == ((0.1, 1.0), (1, 1, 0))
    assert buckets(times, error="INTERNAL") is None
