"""Converts the figures of replicas to and from protobuf: services write them, the catalog reads them."""

from __future__ import annotations

import math

from allm.models.v1 import figures_pb2

from services.errors import InvalidRequest
from services.telemetry.figures import (
    COUNTERS,
    KINDS,
    TIMES,
    DeviceFigures,
    Event,
    Figures,
    HostFigures,
    Kind,
    Latencies,
)

MAX_BOUNDS = 64
MAX_DEVICES = 64
MAX_EVENTS = 256
MAX_NAME = 128  # characters
EVENT_KINDS: dict[Kind, figures_pb2.MachineEventKind.ValueType] = {
    kind: figures_pb2.MachineEventKind.Value(f"MACHINE_EVENT_KIND_{kind.upper()}") for kind in KINDS
}
_NANOS = 1_000_000_000


def figures_message(figures: Figures) -> figures_pb2.ReplicaFigures:
    """Encodes the figures that a replica reports."""
    message = figures_pb2.ReplicaFigures(running=figures.running, waiting=figures.waiting)
    message.start_time.FromNanoseconds(figures.began)
    message.uptime.FromNanoseconds(round(figures.uptime * _NANOS))
    for counter, value in figures.counters.items():
        setattr(message, counter, value)
    for name, times in figures.times.items():
        getattr(message, name).CopyFrom(figures_pb2.Latencies(bounds=times.bounds, counts=times.counts))
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

    Raises InvalidRequest, also for reports larger than any replica's. Skips events of unknown kinds, because a service
    may be newer than the catalog.
    """
    if len(message.events) > MAX_EVENTS:
        raise InvalidRequest(f"'figures.events' may have at most {MAX_EVENTS} entries", param="figures.events")
    kinds = {value: kind for kind, value in EVENT_KINDS.items()}
    counters = {name: getattr(message, name) for name in COUNTERS if message.HasField(name)}
    if not all(math.isfinite(value) and value >= 0 for value in counters.values()):
        raise InvalidRequest("'figures': counters must be finite and not negative", param="figures")
    return Figures(
        began=message.start_time.ToNanoseconds(),
        uptime=message.uptime.ToNanoseconds() / _NANOS,
        running=max(0, message.running),
        waiting=max(0, message.waiting),
        counters=counters,
        times={name: _read_latencies(getattr(message, name)) for name in TIMES if message.HasField(name)},
        host=_read_host(message.host) if message.HasField("host") else None,
        events=tuple((one.number, _read_event(one.event)) for one in message.events if one.event.kind in kinds),
    )


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


def _read_latencies(message: figures_pb2.Latencies) -> Latencies:
    bounds, counts = tuple(message.bounds), tuple(message.counts)
    ascending = all(low < high < math.inf for low, high in zip((0.0, *bounds), bounds, strict=False))
    if not ascending or len(bounds) > MAX_BOUNDS or len(counts) != len(bounds) + 1 or min(counts) < 0:
        what = f"'figures': a histogram must have at most {MAX_BOUNDS} ascending bounds above 0, and one count more"
        raise InvalidRequest(what, param="figures")
    return Latencies(bounds, counts)


def _read_event(message: figures_pb2.MachineEvent) -> Event:
    (kind,) = (kind for kind in KINDS if EVENT_KINDS[kind] == message.kind)
    return Event(
        at=message.time.ToMilliseconds() / 1000,
        kind=kind,
        model=message.model_id[:MAX_NAME],
        reason=message.reason[:MAX_NAME],
    )
