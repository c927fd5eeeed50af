"""`allm top`: the state of the machine, for people and for scripts."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer
from allm.models.v1 import (
    figures_pb2,
    machine_service_pb2,
    machine_service_pb2_grpc,
    model_pb2,
    model_service_pb2,
    model_service_pb2_grpc,
)
from rich.console import Console
from typer.testing import CliRunner, Result

from services.cli import top as module
from services.cli.main import app
from services.cli.models.page import Page
from tests.stack import environment

GIB = 1024**3
LONG = 30.0


def sample(**more: Any) -> machine_service_pb2.WatchMachineResponse:
    """Returns a sample of a host with a GPU and a text service."""
    found = machine_service_pb2.MachineSample(
        hosts=[
            machine_service_pb2.Host(
                id="h",
                name="box",
                total_bytes=10 * GIB,
                used_bytes=4 * GIB,
                threshold_share=0.9,
                devices=[machine_service_pb2.Device(name="cuda:0", total_bytes=8 * GIB, used_bytes=2 * GIB)],
            )
        ],
        traffic=[
            machine_service_pb2.Traffic(
                modality=model_pb2.MODALITY_TEXT,
                replicas=2,
                running=3,
                waiting=1,
                requests_per_second=1234.5,
                generated_tokens_per_second=1234.5,
                draft_tokens_per_second=200.0,
                accepted_tokens_per_second=150.0,
                prompt_tokens_per_second=0.0,
                request=machine_service_pb2.Percentiles(p50_seconds=0.25, p95_seconds=2.5, p99_seconds=61.25, count=9),
                models=[
                    machine_service_pb2.ModelTraffic(model_id="gone", requests_per_second=0.5),
                    machine_service_pb2.ModelTraffic(
                        model_id="used",
                        running=3,
                        waiting=1,
                        requests_per_second=1 / 60,
                        generated_tokens_per_second=1234.5,
                        draft_tokens_per_second=200.0,
                        accepted_tokens_per_second=150.0,
                        first_output=machine_service_pb2.Percentiles(
                            p50_seconds=0.05, p95_seconds=0.75, p99_seconds=0.75, count=9
                        ),
                    ),
                ],
            ),
            machine_service_pb2.Traffic(
                modality=model_pb2.MODALITY_AUDIO,
                replicas=1,
                requests_per_second=0.0,
                audio_seconds_per_second=7.5,
                generated_tokens_per_second=40.0,
            ),
            machine_service_pb2.Traffic(modality=model_pb2.MODALITY_IMAGE, replicas=1, images_per_second=0.2),
        ],
        **more,
    )
    return machine_service_pb2.WatchMachineResponse(sample=found)


def evicted(model: str) -> figures_pb2.MachineEvent:
    event = figures_pb2.MachineEvent(
        kind=figures_pb2.MACHINE_EVENT_KIND_EVICTED, model_id=model, replica="text-1", reason="pressure"
    )
    event.time.seconds = 1_700_000_000
    return event


SYNCED = machine_service_pb2.WatchMachineResponse(synced=machine_service_pb2.MachineSynced())


class Models(model_service_pb2_grpc.ModelServiceServicer):
    """A catalog with a loaded model, one that waits for a request, one that cannot run, and one for audio."""

    listed = 0  # how often the models were listed

    def ListModels(self, request: Any, context: Any) -> model_service_pb2.ListModelsResponse:  # noqa: N802
        Models.listed += 1
        text, ready = model_pb2.MODALITY_TEXT, model_pb2.MODEL_STATE_READY
        found = [
            model_pb2.Model(id="idle", state=ready, modality=text),
            model_pb2.Model(
                id="never",
                state=model_pb2.MODEL_STATE_UNSUPPORTED,
                modality=text,
                reason="never: no driver is loaded",
            ),
            model_pb2.Model(id="used", state=ready, modality=text),
            model_pb2.Model(id="whisper", state=ready, modality=model_pb2.MODALITY_AUDIO),
        ]
        for model, reserved in ((found[0], 0), (found[2], GIB)):
            replica = model.replicas.add(replica="text-1", runtime="llama_cpp", device="vulkan", state=model.state)
            replica.memory.reserved_bytes = reserved
        return model_service_pb2.ListModelsResponse(models=found)


class Machine(machine_service_pb2_grpc.MachineServiceServicer):
    """A machine service that sends the given events and then waits, or refuses the call."""

    def __init__(self, events: list[machine_service_pb2.WatchMachineResponse], refusal: str = "") -> None:
        self.events = events
        self.refusal = refusal
        self.ended = threading.Event()  # set when the watcher disconnects

    def WatchMachine(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        context.add_callback(self.ended.set)
        if self.refusal:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, self.refusal)
        yield from self.events
        self.ended.wait(LONG)


@contextmanager
def running(machine: Machine) -> Iterator[str]:
    """Serves `machine`; yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    machine_service_pb2_grpc.add_MachineServiceServicer_to_server(machine, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(Models(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait(LONG)


@pytest.fixture
def top(tmp_path: Path) -> Callable[..., Result]:
    """Returns a function that runs `allm top` against a scripted machine."""

    def run(machine: Machine, *arguments: str) -> Result:
        with running(machine) as address:
            environ = {**environment(tmp_path), "COLUMNS": "200", "NO_COLOR": "1"}
            return CliRunner().invoke(app, ["top", "--address", address, *arguments], env=environ)

    return run


def test_once_shows_the_present_and_the_latest_events(top: Callable[..., Result]) -> None:
    machine = Machine([sample(events=[evicted("first")]), sample(events=[evicted("second")]), SYNCED, sample()])
    done = top(machine)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["MEMORY", "USED", "OF", "SHARE", "THRESHOLD"]
    assert lines[1].split() == ["box", "4.0", "GiB", "10", "GiB", "40%", "90%"]
    assert lines[2].split() == ["box", "cuda:0", "2.0", "GiB", "8.0", "GiB", "25%", "95%"]
    start = next(place for place, line in enumerate(lines) if line.startswith("MODEL"))
    found = [" ".join(line.split()) for line in lines[start + 1 : start + 9]]
    assert found == [
        "text - 3 1 1,234 1,234 tok - - - 250 ms 2.5 s 61.2 s 75% 0 - 2 -",
        "gone deleted 0 0 0.5 - - - - - - - - - - - -",
        "used loaded 3 1 0.017 1,234 tok 50 ms 750 ms 750 ms - - - 75% - 1.0 GiB - llama_cpp on vulkan",
        "never unsupported - - - - - - - - - - - - - - - no driver is loaded",
        "idle ready - - - - - - - - - - - - - - llama_cpp on vulkan",
        "audio - 0 0 0 7.5 s - - - - - - - - - 1 -",
        "whisper ready - - - - - - - - - - - - - - -",
        "image - 0 0 - 0.2 img - - - - - - - - - 1 -",
    ]
    reported = [line for line in lines if "evicted (pressure)" in line]
    assert [line.split()[-1] for line in reported] == ["second", "first"], "the latest first"
    assert machine.ended.wait(LONG), "it watches no longer"


def test_for_scripts(top: Callable[..., Result]) -> None:
    found = json.loads(top(Machine([sample(events=[evicted("m")]), SYNCED]), "--json").stdout)
    text = found["sample"]["traffic"][0]
    assert [each["model_id"] for each in text["models"]] == ["gone", "used"]
    assert [each["id"] for each in found["models"]] == ["idle", "never", "used", "whisper"]
    assert (text["modality"], text["running"], text["request"]["count"]) == ("text", 3, 9)
    assert "images_per_second" not in text, "it was not measured"
    assert [(each["kind"], each["model_id"]) for each in found["events"]] == [("evicted", "m")]


@pytest.mark.parametrize(
    ("width", "headers"),
    [
        (70, "MODEL STATE RUN WAIT REQ/S OUTPUT/S FIRST P50 P95"),
        (80, "MODEL STATE RUN WAIT REQ/S OUTPUT/S FIRST P50 P95 RIGHT"),
        (120, "MODEL STATE RUN WAIT REQ/S OUTPUT/S FIRST P50 P95 REQUEST P50 P95 RIGHT MEMORY"),
    ],
)
def test_narrow_terminals_show_less(width: int, headers: str) -> None:
    written = io.StringIO()
    page = Page(Console(file=written, force_terminal=True, color_system=None, width=width, highlight=False))
    module.show_machine(page, sample().sample, [], Models().ListModels(None, None).models)
    lines = written.getvalue().splitlines()
    assert next(line for line in lines if line.startswith("MODEL")).split() == headers.split()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if line.startswith(" ")] == ["gone", "used", "never", "idle", "whisper"]
    assert "never: no driver is loaded" in lines


def test_models_are_not_listed_at_each_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    quiet = [sample()] * module.LIST_SAMPLES
    machine = Machine([sample(), SYNCED, *quiet, sample(events=[evicted("m")]), sample()])
    machine.ended.set()
    monkeypatch.setattr(Models, "listed", 0)
    with running(machine) as address, pytest.raises(typer.Exit):
        module.show_on(address, Console(file=io.StringIO(), force_terminal=True, width=200, highlight=False))
    assert Models.listed == 3, "at the start, after five samples, and after an event"


def test_no_running_service(top: Callable[..., Result]) -> None:
    nothing = machine_service_pb2.WatchMachineResponse(sample=machine_service_pb2.MachineSample())
    done = top(Machine([nothing, SYNCED]))
    assert (done.exit_code, done.stdout) == (0, "no service is running\n")


def test_errors_are_sentences(top: Callable[..., Result]) -> None:
    done = top(Machine([], refusal="this key lacks the scope 'admin'"))
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "allm: this key lacks the scope 'admin'\n")


def test_a_catalog_that_has_just_begun_is_waited_for(top: Callable[..., Result]) -> None:
    assert "box" in top(Machine([SYNCED, sample()]), "--once").stdout


def test_on_a_terminal_it_goes_on_until_the_catalog_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    machine = Machine([sample(), SYNCED, sample()])
    machine.ended.set()  # it does not wait
    written = io.StringIO()
    with running(machine) as address:
        console = Console(file=written, force_terminal=True, width=200, highlight=False)
        with pytest.raises(typer.Exit):
            module.show_on(address, console)
    assert "box cuda:0" in written.getvalue()
    assert "\x1b[?1049l" in written.getvalue(), "the terminal is as before"
    assert "it closed the stream" in capsys.readouterr().err


def test_stale_samples_are_not_shown_as_current(top: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended machine behaves like this: its connections stay open."""
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.2)
    done = top(Machine([SYNCED]))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "allm sent nothing for 0.2 seconds" in done.stderr
