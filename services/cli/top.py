"""`allm top`: shows the machine's state as tables until Ctrl-C."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress

from allm.models.v1 import figures_pb2, machine_service_pb2, model_pb2
from google.protobuf import duration_pb2
from rich.console import Console
from rich.live import Live
from rich.text import Text

from services.byte_count import bytes_word
from services.cli.models.catalog import session
from services.cli.models.connection import CallRefused, Connection, Lost, readable_errors
from services.cli.models.listing import detail, time_word
from services.cli.models.page import Page, document, enum_word, modality_word, print_document, state_word
from services.residency.memory.memory_estimate import HOST, share_of

NOTHING = "-"
MEMORY = ("MEMORY", "USED", "OF", "SHARE", "THRESHOLD")
COUNTS = ("REPLICAS", "RUNNING", "WAITING")
RATES = ("TOKENS/S", "GUESSES/S", "RIGHT", "PROMPT/S", "AUDIO S/S", "IMAGES/S")
TRAFFIC = ("SERVICE", *COUNTS, *RATES, "FIRST P50", "P95", "P99", "REQUEST P50", "P95", "P99")
MODELS = ("MODEL", "STATE", "COMPUTES", "RESERVED", "DETAIL")
MODEL_ORDER = {"loaded": 0, "ready": 2}  # the others, of which DETAIL says why, stand between them
MAX_MODELS = 20
EVENTS = ("TIME", "EVENT", "REPLICA", "MODEL")
SILENT_SECONDS = 6.0  # three intervals of samples
PAST_SECONDS = 900  # age of the oldest events shown
MAX_EVENTS = 10
Shown = tuple[machine_service_pb2.MachineSample, list[figures_pb2.MachineEvent]]


def show_machine(
    page: Page,
    sample: machine_service_pb2.MachineSample,
    events: Sequence[figures_pb2.MachineEvent],
    models: Sequence[model_pb2.Model],
) -> None:
    """Shows memory, each service's load, the models with the device that computes them, and the latest events."""
    rows = [row for host in sample.hosts for row in _memory(host)]
    if rows:
        page.table(MEMORY, rows, right=frozenset(MEMORY[1:]))
        page.say("")
    if not sample.traffic:
        page.say("no service is running")
        return
    page.table(TRAFFIC, [_traffic(each) for each in sample.traffic], right=frozenset(TRAFFIC[1:]))
    if models:
        page.say("")
        rows = sorted((_model(model) for model in models), key=lambda row: MODEL_ORDER.get(row[1], 1))
        page.table(MODELS, rows[:MAX_MODELS], right=frozenset({"RESERVED"}))
        if len(rows) > MAX_MODELS:
            page.say(f"and {len(rows) - MAX_MODELS} more: allm models list")
    if events:
        page.say("")
        page.table(EVENTS, [_event(each) for each in events])


def _model(model: model_pb2.Model) -> tuple[str, ...]:
    """Returns a model's row; a model in memory has the state `loaded`."""
    used = {(one.runtime, one.device): None for one in model.replicas if one.runtime}
    reserved = sum(one.memory.reserved_bytes for one in model.replicas)
    return (
        model.id,
        "loaded" if reserved and state_word(model.state) == "ready" else state_word(model.state),
        ", ".join(f"{runtime} on {device}" for runtime, device in used) or NOTHING,
        bytes_word(reserved) if reserved else NOTHING,
        detail(model),
    )


def _memory(host: machine_service_pb2.Host) -> list[tuple[str, ...]]:
    places = [(HOST, host.name, host.used_bytes, host.total_bytes)]
    places += [(one.name, f"{host.name} {one.name}", one.used_bytes, one.total_bytes) for one in host.devices]
    return [
        (
            name,
            bytes_word(used),
            bytes_word(total),
            _share(used, total),
            f"{share_of(device, host.threshold_share):.0%}",
        )
        for device, name, used, total in places
    ]


def _share(used: float, total: float) -> str:
    return f"{used / total:.0%}" if total else NOTHING


def _traffic(traffic: machine_service_pb2.Traffic) -> tuple[str, ...]:
    counts = (traffic.replicas, traffic.running, traffic.waiting)
    given = traffic.HasField
    return (
        modality_word(traffic.modality),
        *map(str, counts),
        _rate(traffic.generated_tokens_per_second) if given("generated_tokens_per_second") else NOTHING,
        _rate(traffic.draft_tokens_per_second) if given("draft_tokens_per_second") else NOTHING,
        _share(traffic.accepted_tokens_per_second, traffic.draft_tokens_per_second),
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


def show_once(address: str, as_json: bool) -> None:
    """Shows one sample and the latest events. An error ends the command with a sentence."""
    with session(address) as at, closing(samples(at.connection)) as found:
        sample, events = next(found)
        if as_json:
            print_document({"sample": document(sample), "events": [document(each) for each in events]})
        else:
            show_machine(Page(), sample, events, at.catalog.models().models)


def show_on(address: str, console: Console) -> None:
    """Shows each new sample on a terminal until Ctrl-C. Ends as `show_once` does."""
    with session(address) as at, suppress(KeyboardInterrupt), Live(console=console, screen=True) as live:
        for sample, events in samples(at.connection):
            drawn = Console(file=io.StringIO(), force_terminal=True, width=console.width, highlight=False)
            with drawn.capture() as shown:
                show_machine(Page(drawn), sample, events, at.catalog.models().models)
            live.update(Text.from_ansi(shown.get()), refresh=True)


def samples(connection: Connection) -> Generator[Shown, None, None]:
    """Yields the last past sample and all later ones, each with the latest events, without end.

    Raises CallRefused, Lost or Late, also if the samples stop.
    """
    request = machine_service_pb2.WatchMachineRequest(history=duration_pb2.Duration(seconds=PAST_SECONDS))
    events: deque[figures_pb2.MachineEvent] = deque(maxlen=MAX_EVENTS)
    last: machine_service_pb2.MachineSample | None = None
    now = False
    for event in _events(connection, request):
        if event.HasField("sample"):
            last = event.sample
            events.extendleft(last.events)
        else:
            now = True
        if now and last is not None:
            yield last, list(events)


def _events(
    connection: Connection, request: machine_service_pb2.WatchMachineRequest
) -> Iterator[machine_service_pb2.WatchMachineResponse]:
    """Yields a watch's events. A sample comes at each interval, so silence means that the connection is dead."""
    call = connection.machine.WatchMachine(request)
    silent = threading.Event()

    def give_up() -> None:
        silent.set()
        call.cancel()

    limit = threading.Timer(SILENT_SECONDS, give_up)
    try:
        with readable_errors():
            while True:
                limit.start()
                event = next(call, None)
                limit.cancel()
                if event is None:
                    raise Lost("allm is stopping: it closed the stream")
                yield event
                limit = threading.Timer(SILENT_SECONDS, give_up)
    except CallRefused:
        if silent.is_set():
            raise Lost(f"allm sent nothing for {SILENT_SECONDS:g} seconds: see its logs") from None
        raise
    finally:
        limit.cancel()
        call.cancel()
