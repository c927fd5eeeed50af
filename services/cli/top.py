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
COLUMNS = (
    *("MODEL", "STATE", "RUN", "WAIT", "REQ/S", "OUTPUT/S", "FIRST P50", "FIRST P95", "FIRST P99", "REQUEST P50"),
    *("REQUEST P95", "REQUEST P99", "RIGHT", "PROMPT/S", "MEMORY", "REPLICAS", "COMPUTES", "DETAIL"),
)
TRAFFIC = [name.split()[-1] if name.endswith(("P95", "P99")) else name for name in COLUMNS]
WORDS = {"MODEL", "STATE", "COMPUTES", "DETAIL"}  # the other columns are numbers
# A narrow terminal does without these, the first of them first.
LEAST = (
    "REPLICAS",
    "REQUEST P99",
    "FIRST P99",
    "PROMPT/S",
    "COMPUTES",
    "REQUEST P95",
    "REQUEST P50",
    "MEMORY",
    "RIGHT",
    "REQ/S",
)
MODEL_ORDER = {"loaded": 0, "ready": 2}  # the others, of which DETAIL says why, stand between them
MAX_MODELS = 20
LIST_SAMPLES = 5  # the models are listed again after so many samples, or after an event
EVENTS = ("TIME", "EVENT", "REPLICA", "MODEL")
SILENT_SECONDS = 6.0  # three intervals of samples
PAST_SECONDS = 900  # age of the oldest events shown
MAX_EVENTS = 10
Load = machine_service_pb2.Traffic | machine_service_pb2.ModelTraffic
Shown = tuple[machine_service_pb2.MachineSample, list[figures_pb2.MachineEvent]]


def show_machine(
    page: Page,
    sample: machine_service_pb2.MachineSample,
    events: Sequence[figures_pb2.MachineEvent],
    models: Sequence[model_pb2.Model],
) -> None:
    """Shows memory, the load of each service and its models, and the latest events."""
    rows = [row for host in sample.hosts for row in _memory(host)]
    if rows:
        page.table(MEMORY, rows, right=frozenset(MEMORY[1:]))
        page.say("")
    if not sample.traffic:
        page.say("no service is running")
        return
    rows, hidden = traffic_rows(sample.traffic, models)
    least = [COLUMNS.index(name) for name in LEAST]
    page.table(TRAFFIC, rows, right=frozenset(TRAFFIC) - WORDS, least=least)
    if hidden:
        page.say(f"and {hidden} more: allm models list")
    if events:
        page.say("")
        page.table(EVENTS, [_event(each) for each in events])


def traffic_rows(
    traffic: Sequence[machine_service_pb2.Traffic], models: Sequence[model_pb2.Model]
) -> tuple[list[tuple[str, ...]], int]:
    """Returns a row for each service, below it one for each of its models, and the number of models left out."""
    services = {each.modality: each for each in traffic}
    loads = {load.model_id: load for each in traffic for load in each.models}
    known = {model.id: model for model in models}
    # A model that is gone may still have finished requests within the last minute.
    places = {load.model_id: each.modality for each in traffic for load in each.models}
    places |= {model.id: model.modality for model in models}

    def order(model_id: str) -> tuple[int, str]:
        return 0 if model_id in loads else MODEL_ORDER.get(_state(known[model_id]), 1), model_id

    shown = sorted(places, key=order)[:MAX_MODELS]
    rows = []
    for modality in sorted({*services, *map(places.__getitem__, shown)}):
        service = services.get(modality)
        replicas = (str(service.replicas) if service else NOTHING, NOTHING, "")
        rows.append((modality_word(modality), NOTHING, *_load(service), NOTHING, *replicas))
        own = (model_id for model_id in shown if places[model_id] == modality)
        rows += [_model(model_id, loads.get(model_id), known.get(model_id)) for model_id in own]
    return rows, len(places) - len(shown)


def _model(model_id: str, load: Load | None, model: model_pb2.Model | None) -> tuple[str, ...]:
    if model is None:
        return (f" {model_id}", "deleted", *_load(load), NOTHING, NOTHING, NOTHING, "")
    used = {(one.runtime, one.device): None for one in model.replicas if one.runtime}
    computes = ", ".join(f"{runtime} on {device}" for runtime, device in used) or NOTHING
    reserved = _reserved(model)
    memory = bytes_word(reserved) if reserved else NOTHING
    return (f" {model_id}", _state(model), *_load(load), memory, NOTHING, computes, detail(model))


def _state(model: model_pb2.Model) -> str:
    """Returns the word of its state; a model in memory has the state `loaded`."""
    word = state_word(model.state)
    return "loaded" if word == "ready" and _reserved(model) else word


def _reserved(model: model_pb2.Model) -> int:
    return sum(one.memory.reserved_bytes for one in model.replicas)


def _load(load: Load | None) -> tuple[str, ...]:
    """Returns the cells from RUN to PROMPT/S."""
    if load is None:
        return (NOTHING,) * (COLUMNS.index("PROMPT/S") - COLUMNS.index("RUN") + 1)
    given = load.HasField
    return (
        str(load.running),
        str(load.waiting),
        _rate(load.requests_per_second, digits=2) if given("requests_per_second") else NOTHING,
        _output(load),
        *_times(load.first_output),
        *_times(load.request),
        _share(load.accepted_tokens_per_second, load.draft_tokens_per_second),
        _rate(load.prompt_tokens_per_second) if given("prompt_tokens_per_second") else NOTHING,
    )


def _output(load: Load) -> str:
    """Returns seconds of transcribed audio, images, or generated tokens per second."""
    if load.HasField("audio_seconds_per_second"):
        return f"{_rate(load.audio_seconds_per_second)} s"
    if load.HasField("images_per_second"):
        return f"{_rate(load.images_per_second)} img"
    return f"{_rate(load.generated_tokens_per_second)} tok" if load.HasField("generated_tokens_per_second") else NOTHING


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


def _rate(rate: float, digits: int = 3) -> str:
    return f"{rate:,.0f}" if rate >= 10 ** (digits - 1) else f"{rate:.{digits}g}"


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
    """Shows one sample, the models and the latest events. An error ends the command with a sentence."""
    with session(address) as at, closing(samples(at.connection)) as found:
        sample, events = next(found)
        models = at.catalog.models().models
        if as_json:
            parts = {"events": events, "models": models}
            print_document({"sample": document(sample)} | {name: [*map(document, all)] for name, all in parts.items()})
        else:
            show_machine(Page(), sample, events, models)


def show_on(address: str, console: Console) -> None:
    """Shows each new sample on a terminal until Ctrl-C. Ends as `show_once` does."""
    with session(address) as at, suppress(KeyboardInterrupt), Live(console=console, screen=True) as live:
        for number, (sample, events) in enumerate(samples(at.connection)):
            if number % LIST_SAMPLES == 0 or sample.events:
                models = at.catalog.models().models
            drawn = Console(file=io.StringIO(), force_terminal=True, width=console.width, highlight=False)
            with drawn.capture() as shown:
                show_machine(Page(drawn), sample, events, models)
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
