"""allm.models.v1.MachineService: the gRPC service for samples of the machine."""

from __future__ import annotations

from typing import Any

from allm.models.v1 import machine_service_pb2, machine_service_pb2_grpc
from google.protobuf import duration_pb2

from services.auth.identity import ADMIN
from services.catalog.machine import Load, Percentiles, Sample, Traffic
from services.catalog.machine_watch import INTERVAL, MachineWatchers
from services.errors import InvalidRequest
from services.models import wire
from services.models.figures_wire import event_message
from services.rpc.call import Call, typed
from services.telemetry.figures import HostFigures


class MachineServicer(machine_service_pb2_grpc.MachineServiceServicer):
    """The API for watching the machine."""

    def __init__(self, watchers: MachineWatchers) -> None:
        self._watchers = watchers

    @typed(scope=ADMIN)
    async def WatchMachine(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: machine_service_pb2.WatchMachineRequest, call: Call
    ) -> None:
        """Streams past samples, a mark, then a sample per interval, until the caller cancels."""
        seconds = request.history.ToMilliseconds() / 1000
        if seconds < 0:
            raise InvalidRequest("'history' must not be negative", param="history")
        response = machine_service_pb2.WatchMachineResponse
        with self._watchers.watch(seconds) as watch:
            while event := await watch.next():
                if isinstance(event, Sample):
                    await call.send(response(sample=sample_message(event)))
                else:
                    interval = duration_pb2.Duration()
                    interval.FromMilliseconds(round(INTERVAL * 1000))
                    await call.send(response(synced=machine_service_pb2.MachineSynced(interval=interval)))


def sample_message(sample: Sample) -> machine_service_pb2.MachineSample:
    """Converts a sample to protobuf."""
    message = machine_service_pb2.MachineSample(
        hosts=map(_host, sample.hosts), traffic=map(_traffic, sample.traffic), events=map(event_message, sample.events)
    )
    message.time.FromMilliseconds(round(sample.at * 1000))
    return message


def _host(host: HostFigures) -> machine_service_pb2.Host:
    return machine_service_pb2.Host(
        id=host.id,
        name=host.name,
        total_bytes=host.total,
        used_bytes=host.used,
        threshold_share=host.threshold,
        devices=[
            machine_service_pb2.Device(id=each.id, name=each.name, total_bytes=each.total, used_bytes=each.used)
            for each in host.devices
        ],
    )


def _traffic(traffic: Traffic) -> machine_service_pb2.Traffic:
    return machine_service_pb2.Traffic(
        modality=wire.MODALITIES[traffic.modality],
        replicas=traffic.replicas,
        models=[
            machine_service_pb2.ModelTraffic(model_id=model, **_load(load)) for model, load in traffic.models.items()
        ],
        **_load(traffic),
    )


def _load(load: Load) -> dict[str, Any]:
    """Returns the fields that Traffic and ModelTraffic share."""
    rates = {f"{counter}_per_second": rate for counter, rate in load.rates.items()}
    times = {name: _percentiles(found) for name, found in load.times.items()}
    return {"running": load.running, "waiting": load.waiting} | rates | times


def _percentiles(found: Percentiles) -> machine_service_pb2.Percentiles:
    return machine_service_pb2.Percentiles(
        p50_seconds=found.p50, p95_seconds=found.p95, p99_seconds=found.p99, count=found.count
    )
