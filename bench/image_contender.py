"""The contenders of the image bench: allm's whole path and the plain pipeline, each in its own processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from bench.contender import BUILD_DIR
from bench.image_caller import Callers
from bench.image_pipeline import MODEL_FOLDER, Level, Plan, Timing
from bench.library_process import LibraryProcess, library_process
from bench.process import Launch, free_port, running
from services.worker.process import worker_environ

START_SECONDS = 120.0
MODEL = "bench"


class Contender(Protocol):
    """An implementation of image generation."""

    @property
    def pid(self) -> int:
        """Its process id; the children of that process count too."""

    def measure(self, level: Level) -> Timing:
        """Generates the images of a level."""


@dataclass(frozen=True)
class Allm:
    """Envoy, the image service, its codecs and its worker, under `allm serve`."""

    pid: int
    callers: Callers

    def measure(self, level: Level) -> Timing:
        """Requests the images of a level and times the answers."""
        return self.callers.run(level)


@contextmanager
def allm(plan: Plan, clients: int) -> Iterator[Allm]:
    """Runs allm until the block ends, with the model loaded and warmed up by one request of each client."""
    port = free_port()
    settings = {
        "ALLM_PORT": str(port),
        "ALLM_METRICS_PORT": "0",
        "ALLM_HOME": str(BUILD_DIR / "home-image"),
        "ALLM_MODELS": f"{MODEL}={MODEL_FOLDER}",
        "ALLM_AUDIO_REPLICAS": "0",
        "ALLM_DEVICE": "cpu",
        "ALLM_THREADS": str(plan.threads),
        "ALLM_IMAGE_DTYPE": plan.dtype,
    }
    log = BUILD_DIR / "logs" / "allm-image.log"
    launch = Launch("allm", [sys.executable, "-m", "services.cli", "serve"], port, "/healthz", log, settings)
    with running(launch) as started:
        callers = Callers(started.url, MODEL, plan)
        callers.wait_ready(START_SECONDS, range(1))
        callers.wait_ready(START_SECONDS, range(clients))
        yield Allm(started.pid, callers)


def pipeline(plan: Plan) -> AbstractContextManager[LibraryProcess[Timing]]:
    """Runs the plain pipeline until the block ends, with its model loaded, in the environment of allm's workers."""
    return library_process("bench.image_pipeline", plan, plan.name, Timing, worker_environ(plan.threads))
