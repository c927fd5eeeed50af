"""`allm top`: shows the machine's state until Ctrl-C."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, suppress

from allm.models.v1 import figures_pb2, machine_service_pb2
from google.protobuf import duration_pb2
from rich.console import Console
from rich.live import Live
from rich.text import Text

from services.cli.machine_page import show_machine
from services.cli.models.connection import Connection, Lost, Refused, told
from services.cli.models.document import document, print_document
from services.cli.models.page import Page
from services.cli.models.session import session

SILENT_SECONDS = 6.0  # three intervals of samples
PAST_SECONDS = 900  # age of the oldest events shown
MAX_EVENTS = 10

Shown = tuple[machine_service_pb2.MachineSample, list[figures_pb2.MachineEvent]]


def show_once(address: str, as_json: bool) -> None:
    """Shows one sample and the latest events. An error ends the command with a sentence."""
    with session(address) as at, closing(_samples(at.connection)) as samples:
        sample, events = next(samples)
        if as_json:
            print_document({"sample": document(sample), "events": [document(each) for each in events]})
        else:
            show_machine(Page(), sample, events)


def show_on(address: str, console: Console) -> None:
    """Shows each new sample on a terminal until Ctrl-C. Ends as `show_once` does."""
    with session(address) as at, suppress(KeyboardInterrupt), Live(console=console, screen=True) as live:
        for sample, events in _samples(at.connection):
            drawn = Console(file=io.StringIO(), force_terminal=True, width=console.width, highlight=False)
            with drawn.capture() as shown:
                show_machine(Page(drawn), sample, events)
            live.update(Text.from_ansi(shown.get()), refresh=True)


def _samples(connection: Connection) -> Generator[Shown, None, None]:
    """Yields the last past sample and all later ones, each with the latest events, without end.

    Raises Refused, Lost or Late, also if the samples stop.
    """
    request = machine_service_pb2.WatchMachineRequest(history=duration_pb2.Duration(seconds=PAST_SECONDS))
    events: deque[figures_pb2.MachineEvent] = deque(maxlen=MAX_EVENTS)
    last: machine_service_pb2.MachineSample | None = None
    now = False
    for event in _heard(connection, request):
        if event.HasField("sample"):
            last = event.sample
            events.extendleft(last.events)
        else:
            now = True
        if now and last is not None:
            yield last, list(events)


def _heard(
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
        with told():
            while True:
                limit.start()
                event = next(call, None)
                limit.cancel()
                if event is None:
                    raise Lost("allm is stopping: it has ended the watch")
                yield event
                limit = threading.Timer(SILENT_SECONDS, give_up)
    except Refused:
        if silent.is_set():
            raise Lost(f"nothing was heard of allm for {SILENT_SECONDS:g} seconds: see its logs") from None
        raise
    finally:
        limit.cancel()
        call.cancel()
