"""Who draws: allm's whole path, and the plain pipeline, each in processes of its own that wait for their turns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from bench.contender import BUILD_DIR
from bench.image_caller import Callers
from bench.image_pipeline import MODEL_FOLDER, Level, Plan, Timing
from bench.process import Launch, free_port, running
from services.residency.environment import worker_environ

START_SECONDS = 120.0
STOP_SECONDS = 10.0
MODEL = "bench"


class Contender(Protocol):
    """One that draws."""

    @property
    def pid(self) -> int:
        """Of its process, whose children count as well."""

    def measure(self, level: Level) -> Timing:
        """Draws the pictures of a level."""


@dataclass(frozen=True)
class Allm:
    """Envoy, the image service, its codecs and its worker, under `allm serve`."""

    pid: int
    callers: Callers

    def measure(self, level: Level) -> Timing:
        """Asks for the pictures of a level."""
        return self.callers.run(level)


@dataclass(frozen=True)
class PipelineProcess:
    """The plain pipeline."""

    name: str
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def measure(self, level: Level) -> Timing:
        """Has the pictures of a level drawn."""
        given, taken = self.process.stdin, self.process.stdout
        if given is None or taken is None:
            raise RuntimeError("the process has no pipes")
        print(msgspec.json.encode(level).decode(), file=given, flush=True)
        line = taken.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self.process.wait()}")
        return msgspec.json.decode(line, type=Timing)


@contextmanager
def allm(plan: Plan, clients: int) -> Iterator[Allm]:
    """Runs allm until the block ends, with the model loaded and asked by so many clients once."""
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


@contextmanager
def pipeline(plan: Plan) -> Iterator[PipelineProcess]:
    """Runs the plain pipeline until the block ends, with its model loaded, in the environment of allm's workers."""
    log = BUILD_DIR / "logs" / "image-pipeline.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.image_pipeline", msgspec.json.encode(plan).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **worker_environ(plan.threads)},
            cwd=Path(__file__).parents[1],
        )
    try:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"{plan.name} did not start: {log} says why")
        yield PipelineProcess(plan.name, process)
    finally:
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
