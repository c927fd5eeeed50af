"""Converts the figures of replicas to and from protobuf: services write them, the catalog reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from allm.models.v1 import figures_pb2

from services.errors import InvalidRequest
from services.telemetry.figures import (
    COUNTERS,
    KINDS,
    MOST_LATENCIES,
    TIMES,
    Counter,
    DeviceFigures,
    Event,
    Figures,
    HostFigures,
    Kind,
    Latency,
    ModelFigures,
    Times,
)

MAX_DEVICES = 64
MAX_EVENTS = 256
MAX_MODELS = 1000
MAX_NAME = 128  # characters
EVENT_KINDS: dict[Kind, figures_pb2.MachineEventKind.ValueType] = {
    kind: figures_pb2.MachineEventKind.Value(f"MACHINE_EVENT_KIND_{kind.upper()}") for kind in KINDS
}
LATENCY_KINDS: dict[Times, figures_pb2.LatencyKind.ValueType] = {
    kind: figures_pb2.LatencyKind.Value(f"LATENCY_KIND_{kind.upper()}") for kind in TIMES
}
_EVENT_KINDS = {value: kind for kind, value in EVENT_KINDS.items()}
_LATENCY_KINDS = {value: kind for kind, value in LATENCY_KINDS.items()}
_NANOS = 1_000_000_000


def figures_message(figures: Figures) -> figures_pb2.ReplicaFigures:
    """Encodes the figures that a replica reports; of its models, the first MAX_MODELS."""
    message = figures_pb2.ReplicaFigures(running=figures.running, waiting=figures.waiting)
    _set_counters(message, figures.counters)
    message.start_time.FromNanoseconds(figures.began)
    message.uptime.FromNanoseconds(round(figures.uptime * _NANOS))
    for model_id, model in list(figures.models.items())[:MAX_MODELS]:
        part = message.models.add(model_id=model_id, running=model.running, waiting=model.waiting)
        _set_counters(part, model.counters)
    for number, latency in figures.latencies:
        message.latencies.add(
            number=number,
            kind=LATENCY_KINDS[latency.kind],
            model_id=latency.model,
            seconds=latency.seconds,
            age_seconds=latency.age,
        )
    if host := figures.host:
        message.host.CopyFrom(_host_message(host))
    for number, event in figures.events:
        message.events.add(number=number, event=event_message(event))
    return message


def event_message(event: Event) -> figures_pb2.MachineEvent:
    """Encodes an event."""
    message = figures_pb2.MachineEvent(
        kind=EVENT_KINDS[event.kind], model_id=event.model, replica=event.replica, reason=event.reason
    )
    message.time.FromMilliseconds(round(event.at * 1000))
    return message


def read_figures(message: figures_pb2.ReplicaFigures) -> Figures:
    """Decodes the figures of a replica; long texts are cut.

    Raises InvalidRequest, also for reports larger than any replica's. Skips events and latencies of unknown kinds,
    because a service may be newer than the catalog, and figures of models without an id.
    """
    for name, most in (("events", MAX_EVENTS), ("models", MAX_MODELS), ("latencies", MOST_LATENCIES)):
        if len(getattr(message, name)) > most:
            raise InvalidRequest(f"'figures.{name}' may have at most {most} entries", param=f"figures.{name}")
    return Figures(
        began=message.start_time.ToNanoseconds(),
        uptime=message.uptime.ToNanoseconds() / _NANOS,
        running=max(0, message.running),
        waiting=max(0, message.waiting),
        counters=_read_counters(message),
        models={one.model_id[:MAX_NAME]: _read_model(one) for one in message.models if one.model_id},
        latencies=tuple(
            (one.number, _read_latency(one)) for one in message.latencies if one.model_id and one.kind in _LATENCY_KINDS
        ),
        events=tuple((one.number, _read_event(one.event)) for one in message.events if one.event.kind in _EVENT_KINDS),
        host=_read_host(message.host) if message.HasField("host") else None,
    )


def _set_counters(
    message: figures_pb2.ReplicaFigures | figures_pb2.ModelFigures, counters: Mapping[Counter, float]
) -> None:
    for counter, value in counters.items():
        setattr(message, counter, value)


def _host_message(host: HostFigures) -> figures_pb2.HostFigures:
    return figures_pb2.HostFigures(
        id=host.id,
        name=host.name,
        total_bytes=host.total,
        used_bytes=host.used,
        threshold_share=host.threshold,
        devices=[
            figures_pb2.DeviceFigures(id=each.id, name=each.name, total_bytes=each.total, used_bytes=each.used)
            for each in host.devices[:MAX_DEVICES]
        ],
    )


def _read_host(message: figures_pb2.HostFigures) -> HostFigures:
    if not 0 <= message.threshold_share <= 1 or len(message.devices) > MAX_DEVICES:
        what = f"'figures.host': the threshold must be a share from 0 to 1, with at most {MAX_DEVICES} devices"
        raise InvalidRequest(what, param="figures.host")
    return HostFigures(
        id=message.id[:MAX_NAME],
        name=message.name[:MAX_NAME],
        total=message.total_bytes,
        used=message.used_bytes,
        threshold=message.threshold_share,
        devices=tuple(
            DeviceFigures(
                id=each.id[:MAX_NAME], name=each.name[:MAX_NAME], total=each.total_bytes, used=each.used_bytes
            )
            for each in message.devices
        ),
    )


def _read_counters(message: figures_pb2.ReplicaFigures | figures_pb2.ModelFigures) -> dict[Counter, float]:
    counters: dict[Counter, float] = {name: getattr(message, name) for name in COUNTERS if message.HasField(name)}
    if not all(map(_is_amount, counters.values())):
        raise InvalidRequest("'figures': counters must be finite and not negative", param="figures")
    return counters


def _is_amount(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _read_model(message: figures_pb2.ModelFigures) -> ModelFigures:
    return ModelFigures(
        running=max(0, message.running), waiting=max(0, message.waiting), counters=_read_counters(message)
    )


def _read_latency(message: figures_pb2.NumberedLatency) -> Latency:
    if not _is_amount(message.seconds) or not _is_amount(message.age_seconds):
        what = "'figures.latencies': times and ages must be finite and not negative"
        raise InvalidRequest(what, param="figures.latencies")
    return Latency(
        kind=_LATENCY_KINDS[message.kind],
        model=message.model_id[:MAX_NAME],
        seconds=message.seconds,
        age=message.age_seconds,
    )


def _read_event(message: figures_pb2.MachineEvent) -> Event:
    return Event(
        at=message.time.ToMilliseconds() / 1000,
        kind=_EVENT_KINDS[message.kind],
        model=message.model_id[:MAX_NAME],
        reason=message.reason[:MAX_NAME],
    )
