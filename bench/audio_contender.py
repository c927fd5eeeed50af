"""The contenders of the transcription bench: allm's whole path, and each library in its own process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from bench.audio_library import Level, Library, Plan, Timing
from bench.audio_material import model_folder
from bench.audio_upload import Clients, until_ready
from bench.contender import BUILD_DIR
from bench.library_process import LibraryProcess, library_process
from bench.process import Launch, free_port, running

START_SECONDS = 120.0
MODEL = "bench"


class Contender(Protocol):
    """An implementation of transcription."""

    name: str
    pid: int  # its process; the children of that count too

    def measure(self, level: Level) -> Timing:
        """Transcribes the clips of a level."""


class Allm:
    """Envoy, the audio service, its decoders and its worker, under `allm serve`."""

    name = "allm"

    def __init__(self, pid: int, clients: Clients) -> None:
        self.pid = pid
        self._clients = clients

    def measure(self, level: Level) -> Timing:
        """Uploads the clips of a level and times the answers."""
        return self._clients.run(level.clips, level.clients)


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


def library(plan: Plan) -> AbstractContextManager[LibraryProcess[Timing]]:
    """Runs a library until the block ends, with its model loaded."""
    return library_process("bench.audio_library", plan, plan.name, Timing)


def libraries(threads: int, compute_type: str, batches: Sequence[int], *, vad: bool) -> list[Plan]:
    """Returns the plans that may be the best for each library."""
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
    """Returns the plans for the encoder alone, for windows of `columns` columns of 10 ms."""
    workers = dict.fromkeys((1, threads))
    return [
        Plan(library=Library.ENCODER, threads=threads, workers=split, batch=batch, columns=columns)
        for split in workers
        for batch in (batches if split == 1 else batches[:1])
    ]
