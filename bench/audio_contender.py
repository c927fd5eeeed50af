"""Who transcribes: allm's whole path, and the libraries, each in a process of its own that waits for its turns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from bench.audio_library import Level, Library, Plan, Timing
from bench.audio_material import model_folder
from bench.audio_upload import Clients, until_ready
from bench.contender import BUILD_DIR
from bench.process import Launch, free_port, running

START_SECONDS = 120.0
MODEL = "bench"


class Contender(Protocol):
    """One that transcribes."""

    name: str
    pid: int  # of its process, whose children count as well

    def measure(self, level: Level) -> Timing:
        """Transcribes the clips of a level."""


class Allm:
    """Envoy, the audio service, its decoders and its worker, under `allm serve`."""

    name = "allm"

    def __init__(self, pid: int, clients: Clients) -> None:
        self.pid = pid
        self._clients = clients

    def measure(self, level: Level) -> Timing:
        """Uploads the clips of a level."""
        return self._clients.run(level.clips, level.clients)


class LibraryProcess:
    """A library in a process of its own."""

    def __init__(self, plan: Plan, process: subprocess.Popen[str]) -> None:
        self.name = plan.name
        self.pid = process.pid
        self._process = process

    def measure(self, level: Level) -> Timing:
        """Has the clips of a level transcribed."""
        given, taken = self._process.stdin, self._process.stdout
        if given is None or taken is None:
            raise RuntimeError("the process has no pipes")
        print(msgspec.json.encode(level).decode(), file=given, flush=True)
        line = taken.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self._process.wait()}")
        return msgspec.json.decode(line, type=Timing)


@contextmanager
def allm(threads: int, compute_type: str, *, vad: bool, environment: dict[str, str] | None = None) -> Iterator[Allm]:
    """Runs allm until the block ends, with the model loaded."""
    port = free_port()
    settings = {
        "ALLM_PORT": str(port),
        "ALLM_METRICS_PORT": "0",
        "ALLM_HOME": str(BUILD_DIR / "home-audio"),
        "ALLM_MODELS": f"{MODEL}={model_folder()}",
        "ALLM_IMAGE_REPLICAS": "0",
        "ALLM_DEVICE": "cpu",
        "ALLM_THREADS": str(threads),
        "ALLM_AUDIO_COMPUTE_TYPE": compute_type,
        **(environment or {}),
    }
    log = BUILD_DIR / "logs" / "allm-audio.log"
    launch = Launch("allm", [sys.executable, "-m", "services.cli", "serve"], port, "/healthz", log, settings)
    with running(launch) as started:
        clients = Clients(started.url, MODEL, vad=vad)
        for _ in until_ready(clients, START_SECONDS):
            pass
        yield Allm(started.pid, clients)


@contextmanager
def library(plan: Plan) -> Iterator[LibraryProcess]:
    """Runs a library until the block ends, with its model loaded."""
    log = BUILD_DIR / "logs" / "audio-library.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.audio_library", msgspec.json.encode(plan).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=Path(__file__).parents[1],
        )
    try:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"{plan.name} did not start: {log} says why")
        yield LibraryProcess(plan, process)
    finally:
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def libraries(threads: int, compute_type: str, batches: Sequence[int], *, vad: bool) -> list[Plan]:
    """Each library at what may be its best."""
    halves = 2 if threads > 1 else 1
    plans = [Plan(library=Library.WHISPER, threads=threads)]
    plans += [Plan(library=Library.FASTER_WHISPER, threads=threads)]
    plans += [Plan(library=Library.BATCHED, threads=threads, batch=batch) for batch in batches]
    if halves > 1:
        plans.append(Plan(library=Library.WHISPER, threads=threads, processes=halves))
        plans.append(Plan(library=Library.FASTER_WHISPER, threads=threads, workers=halves))
        plans.append(Plan(library=Library.FASTER_WHISPER, threads=threads, processes=halves))
        plans.append(Plan(library=Library.BATCHED, threads=threads, batch=batches[0], workers=halves))
    return [replace(plan, compute_type=compute_type, vad=vad) for plan in plans]


def encoders(threads: int, compute_type: str, columns: int, batches: Sequence[int]) -> list[Plan]:
    """The encoder alone, for windows of so many columns of 10 ms."""
    workers = dict.fromkeys((1, threads))
    return [
        Plan(library=Library.ENCODER, threads=threads, workers=split, batch=batch, columns=columns)
        for split in workers
        for batch in (batches if split == 1 else batches[:1])
    ]
