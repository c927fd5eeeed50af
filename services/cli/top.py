"""`allm top`: what the machine does, now and until Ctrl-C."""

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

SILENT_SECONDS = 6.0  # three of its intervals
PAST_SECONDS = 900  # whose events are shown
MAX_EVENTS = 10

Shown = tuple[machine_service_pb2.MachineSample, list[figures_pb2.MachineEvent]]


def show_once(address: str, as_json: bool) -> None:
    """One sample, and the latest events. Ends the command with a sentence where something is wrong."""
    with session(address) as at, closing(_samples(at.connection)) as samples:
        sample, events = next(samples)
        if as_json:
            print_document({"sample": document(sample), "events": [document(each) for each in events]})
        else:
            show_machine(Page(), sample, events)


def show_on(address: str, console: Console) -> None:
    """One sample after the other, on a terminal, until Ctrl-C. Ends as `show_once` does."""
    with session(address) as at, suppress(KeyboardInterrupt), Live(console=console, screen=True) as live:
        for sample, events in _samples(at.connection):
            drawn = Console(file=io.StringIO(), force_terminal=True, width=console.width, highlight=False)
            with drawn.capture() as shown:
                show_machine(Page(drawn), sample, events)
            live.update(Text.from_ansi(shown.get()), refresh=True)


def _samples(connection: Connection) -> Generator[Shown, None, None]:
    """The last sample of the past, and each from then on, with the latest events; without end.

    Raises Refused, Lost or Late, also where nothing comes any more.
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
    """What a watch tells; a sample comes at each interval, so silence means that nobody is there any more."""
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
