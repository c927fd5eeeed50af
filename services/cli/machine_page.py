"""A sample of the machine as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from allm.models.v1 import figures_pb2, machine_service_pb2

from services.byte_count import bytes_word
from services.cli.models.listing import time_word
from services.cli.models.page import Page
from services.cli.models.words import enum_word, modality_word

NOTHING = "-"
MEMORY = ("MEMORY", "USED", "OF", "SHARE", "THRESHOLD")
COUNTS = ("REPLICAS", "RUNNING", "WAITING")
RATES = ("TOKENS/S", "PROMPT/S", "AUDIO S/S", "IMAGES/S")
TRAFFIC = ("SERVICE", *COUNTS, *RATES, "FIRST P50", "P95", "P99", "REQUEST P50", "P95", "P99")
EVENTS = ("TIME", "EVENT", "REPLICA", "MODEL")


def show_machine(
    page: Page, sample: machine_service_pb2.MachineSample, events: Sequence[figures_pb2.MachineEvent]
) -> None:
    """Shows memory, each service's load, and the latest events."""
    rows = [row for host in sample.hosts for row in _memory(host)]
    if rows:
        page.table(MEMORY, rows, right=frozenset(MEMORY[1:]))
        page.say("")
    if not sample.traffic:
        page.say("no service is running")
        return
    page.table(TRAFFIC, [_traffic(each) for each in sample.traffic], right=frozenset(TRAFFIC[1:]))
    if events:
        page.say("")
        page.table(EVENTS, [_event(each) for each in events])


def _memory(host: machine_service_pb2.Host) -> list[tuple[str, ...]]:
    places = [(host.name, host.used_bytes, host.total_bytes)]
    places += [(f"{host.name} {device.name}", device.used_bytes, device.total_bytes) for device in host.devices]
    return [
        (name, bytes_word(used), bytes_word(total), _share(used, total), f"{host.threshold_share:.0%}")
        for name, used, total in places
    ]


def _share(used: int, total: int) -> str:
    return f"{used / total:.0%}" if total else NOTHING


def _traffic(traffic: machine_service_pb2.Traffic) -> tuple[str, ...]:
    counts = (traffic.replicas, traffic.running, traffic.waiting)
    given = traffic.HasField
    return (
        modality_word(traffic.modality),
        *map(str, counts),
        _rate(traffic.generated_tokens_per_second) if given("generated_tokens_per_second") else NOTHING,
        _rate(traffic.prompt_tokens_per_second) if given("prompt_tokens_per_second") else NOTHING,
        _rate(traffic.audio_seconds_per_second) if given("audio_seconds_per_second") else NOTHING,
        _rate(traffic.images_per_second) if given("images_per_second") else NOTHING,
        *_times(traffic.first_output),
        *_times(traffic.request),
    )


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _times(times: machine_service_pb2.Percentiles) -> tuple[str, ...]:
    if not times.count:
        return (NOTHING,) * 3
    return tuple(_time(each) for each in (times.p50_seconds, times.p95_seconds, times.p99_seconds))


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _event(event: figures_pb2.MachineEvent) -> tuple[str, ...]:
    what = enum_word(figures_pb2.MachineEventKind.DESCRIPTOR, event.kind).replace("_", " ")
    return time_word(event.time), f"{what} ({event.reason})" if event.reason else what, event.replica, event.model_id
