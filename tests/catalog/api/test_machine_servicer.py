"""The typed machine API of a running catalog: reports in, samples out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.models.v1 import figures_pb2, machine_service_pb2
from google.protobuf import duration_pb2

from services.catalog import machine_watch
from services.catalog.replica_status import MISSED_REPORTS, REPORT_WITHIN
from tests.catalog.catalog_service import AUDIO, TEXT, Service, event, refusal, running

Code = grpc.StatusCode


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the interval between samples."""
    monkeypatch.setattr(machine_watch, "INTERVAL", 0.02)


def figures(uptime: int, **more: Any) -> figures_pb2.ReplicaFigures:
    """Returns the figures of a text replica; `done`: durations of finished requests of the model `m`."""
    done = more.pop("done", ())
    message = figures_pb2.ReplicaFigures(
        running=1,
        waiting=2,
        models=[figures_pb2.ModelFigures(model_id="m", running=1, requests=len(done))],
        latencies=[
            figures_pb2.NumberedLatency(
                number=number, kind=figures_pb2.LATENCY_KIND_REQUEST, model_id="m", seconds=seconds
            )
            for number, seconds in enumerate(done, 1)
        ],
        host=figures_pb2.HostFigures(id="h", name="box", total_bytes=100, used_bytes=60, threshold_share=0.9),
        **more,
    )
    message.start_time.seconds = 1000
    message.uptime.seconds = uptime
    return message


async def sample(stream: Any, wanted: Any = lambda sample: True) -> Any:
    """Returns the next sample that satisfies `wanted`."""
    while True:
        reported = await event(stream)
        if reported.HasField("sample") and wanted(reported.sample):
            return reported.sample


async def test_reports_of_replicas_become_samples(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.report(complete=True, figures=figures(10, generated_tokens=100))
        service.clock.now += 2
        await service.report(figures=figures(12, generated_tokens=150, done=(0.5, 0.25, 4.0)))
        stream = service.watch_machine()
        found = await sample(stream, lambda sample: sample.traffic and sample.traffic[0].HasField("request"))
        (host,), (text,) = found.hosts, found.traffic
        assert (host.id, host.name, host.total_bytes, host.used_bytes) == ("h", "box", 100, 60)
        assert host.threshold_share == pytest.approx(0.9)
        assert (text.modality, text.replicas, text.running, text.waiting) == (TEXT, 1, 1, 2)
        assert text.generated_tokens_per_second == pytest.approx(25)
        (model,) = text.models
        assert (model.model_id, model.running, model.waiting) == ("m", 1, 0)
        assert model.requests_per_second == pytest.approx(3 / 2)
        for each in (text.request, model.request):
            assert (each.p50_seconds, each.p95_seconds, each.p99_seconds, each.count) == (0.5, 4.0, 4.0, 3)
        for absent in ("prompt_tokens_per_second", "audio_seconds_per_second", "images_per_second", "first_output"):
            assert not text.HasField(absent)
        stream.cancel()


async def test_the_past_comes_before_the_mark(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        first = service.watch_machine()
        for _ in range(3):
            await sample(first)
        stream, times = service.watch_machine(900), []
        while not (reported := await event(stream)).HasField("synced"):
            times.append(reported.sample.time.ToNanoseconds())
        assert len(times) >= 3
        assert times == sorted(times)
        assert reported.synced.interval.ToNanoseconds() > 0
        now = await sample(stream)
        assert now.time.ToNanoseconds() >= times[-1]
        for each in (first, stream):
            each.cancel()


async def test_replicas_that_leave_or_fall_silent_stop_counting(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        stream = service.watch_machine()
        await service.report("text-1", complete=True, figures=figures(1))
        await service.report("audio-1", complete=True, modality=AUDIO, runtimes=[], figures=figures(1))
        await sample(stream, lambda sample: len(sample.traffic) == 2)
        await service.report("audio-1", modality=AUDIO, leaving=True)
        found = await sample(stream, lambda sample: len(sample.traffic) == 1)
        assert (found.traffic[0].modality, list(found.events)) == (TEXT, [])
        service.clock.now += REPORT_WITHIN * MISSED_REPORTS + 1
        found = await sample(stream, lambda sample: not sample.traffic)
        assert list(found.hosts) == []
        (lost,) = found.events
        assert (lost.kind, lost.replica) == (figures_pb2.MACHINE_EVENT_KIND_REPLICA_LOST, "text-1")
        stream.cancel()


async def test_events_pass_through_with_their_replica(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        reported = figures(1)
        evicted = reported.events.add(number=1).event
        evicted.kind, evicted.model_id, evicted.reason = figures_pb2.MACHINE_EVENT_KIND_EVICTED, "m", "pressure"
        evicted.time.GetCurrentTime()
        reported.events.add(number=2).event.kind = 99  # an event kind of a newer service
        await service.report(complete=True, figures=reported)
        stream = service.watch_machine(900)
        (found,) = (await sample(stream, lambda sample: sample.events)).events
        assert (found.model_id, found.replica, found.reason) == ("m", "text-1", "pressure")
        stream.cancel()


async def test_unknown_sender_is_ignored(tmp_path: Path) -> None:
    """The catalog ignores the figures in a partial report of an unknown replica, because their number has no bound."""
    async with running(tmp_path) as service:
        assert await service.report("stranger", figures=figures(1))
        stream = service.watch_machine()
        assert list((await sample(stream)).traffic) == []
        stream.cancel()


async def test_replicas_without_figures_are_left_out(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.report("old", complete=True)
        await service.report("new", complete=True, figures=figures(1))
        stream = service.watch_machine()
        found = await sample(stream, lambda sample: sample.traffic)
        assert found.traffic[0].replicas == 1
        stream.cancel()


@pytest.mark.parametrize(
    "wrong",
    [
        {"generated_tokens": -1.0},
        {"images": float("nan")},
        {"models": [figures_pb2.ModelFigures(model_id="m", requests=-1)]},
        {"models": [figures_pb2.ModelFigures()] * 1001},
        {"latencies": [figures_pb2.NumberedLatency(kind=figures_pb2.LATENCY_KIND_REQUEST, model_id="m", seconds=-1)]},
        {"latencies": [figures_pb2.NumberedLatency(number=1)] * 5000},
        {"events": [figures_pb2.NumberedEvent(number=1)] * 300},
    ],
)
async def test_figures_that_cannot_be_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async with running(tmp_path) as service:
        error = await refusal(service.report(complete=True, figures=figures_pb2.ReplicaFigures(**wrong)))
        assert (error.code, error.param.partition(".")[0]) == (Code.INVALID_ARGUMENT, "figures")


async def test_a_negative_past_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        request = machine_service_pb2.WatchMachineRequest(history=duration_pb2.Duration(seconds=-1))
        assert await watch_refusal(service, request) == Code.INVALID_ARGUMENT


async def test_watches_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_watch, "MAX_WATCHERS", 1)
    async with running(tmp_path) as service:
        stream = service.watch_machine()
        await sample(stream)
        assert await watch_refusal(service, machine_service_pb2.WatchMachineRequest()) == Code.RESOURCE_EXHAUSTED
        stream.cancel()


async def watch_refusal(service: Service, request: machine_service_pb2.WatchMachineRequest) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await service.machine.WatchMachine(request).read()
    return refused.value.code()


async def test_the_end_of_the_catalog_ends_watches(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        stream = service.watch_machine()
        await sample(stream)
        service.catalog.end_watches()
        while await event(stream) is not grpc.aio.EOF:
            pass
