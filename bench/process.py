"""A server under test as a child process: starts it, waits until it is ready, and stops it by its process id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import psutil

from bench.load import first_model
from bench.noise import process_seconds

_POLL_SECONDS = 0.05
_STOP_SECONDS = 30.0


class ServerError(Exception):
    """A server did not start."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The command, environment and limits for the start of a server."""

    name: str
    arguments: Sequence[str]
    port: int
    health_path: str
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)  # in addition to our own
    start_seconds: float = 180.0  # time limit until it is healthy and lists a model
    model: str = ""  # the model to request; empty: the first one that it lists

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    url: str
    model: str
    pid: int
    log: Path

    def idle_percent(self, seconds: float = 0.5) -> float:
        """Measures the idle use of one core, in percent: a server that spins slows down the next process."""
        before = process_seconds(self.pid)
        time.sleep(seconds)
        return 100 * (process_seconds(self.pid) - before) / seconds

    def memory(self) -> int:
        """Returns the memory of the process that holds the model, the largest of all, in bytes."""
        root, found = psutil.Process(self.pid), 0
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                found = max(found, each.memory_info().rss)
        return found


@contextmanager
def running(launch: Launch) -> Iterator[Running]:
    """Starts a server, waits until it can answer, and stops it at the end with all its child processes.

    Raises:
        ServerError: the server ended or was not ready in time; the message holds the end of its log.
    """
    launch.log.parent.mkdir(parents=True, exist_ok=True)
    # SIGTERM must not leave the server behind: by default it would skip the clean-up below.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with launch.log.open("wb") as log:
        process = subprocess.Popen(
            launch.arguments,
            env={**os.environ, **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            model = _wait_ready(launch, process)
            yield Running(launch.url, model, process.pid, launch.log)
        finally:
            _stop(process)
            signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """Returns a port of the loopback interface that is free at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_ready(launch: Launch, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + launch.start_seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"{launch.name} ended with status {process.returncode}:\n{_tail(launch.log)}")
        model = _listed_model(launch)
        if model is not None:
            return model
        time.sleep(_POLL_SECONDS)
    raise ServerError(f"{launch.name} was not ready within {launch.start_seconds:g} s:\n{_tail(launch.log)}")


def _listed_model(launch: Launch) -> str | None:
    try:
        with urlopen(launch.url + launch.health_path, timeout=5):
            return launch.model or first_model(launch.url)
    except (OSError, ValueError):  # not listening yet, or the answer is not a list of models yet
        return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in psutil.wait_procs(family, timeout=5)[1]:
        child.kill()


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])
