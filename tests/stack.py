"""The whole stack as `allm serve` runs it: real Envoy, real services, real models, a separate folder, free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.demo_model import demo_model
from tests.ports import free_port

MODEL = "smollm2-135m-instruct"
ALIAS = "gpt-4o"
SPEECH_MODEL = "whisper-tiny.en"
IMAGE_MODEL = "shapes-sd"
START_SECONDS = 90
STOP_SECONDS = 60
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Stack:
    """A running `allm serve`."""

    process: subprocess.Popen[bytes]
    home: Path
    port: int

    @property
    def note(self) -> dict[str, Any]:
        """Returns the current `run.json`."""
        note: dict[str, Any] = json.loads((self.home / "run.json").read_text())
        return note

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def output(self) -> str:
        """Returns the terminal output so far, and the ends of the logs."""
        parts = [self.home / "output.txt", *(self.home / "logs").glob("*.log")]
        return "\n".join(f"--- {part.name}\n{part.read_text(errors='replace')[-4000:]}" for part in parts)

    def is_ready(self) -> bool:
        """Returns true when the models of its settings are registered."""
        try:
            return bool(self.note["ready"])
        except FileNotFoundError:
            return False

    def is_healthy(self) -> bool:
        """Returns true when the gateway accepts connections and has a healthy service behind it."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:  # refused, or an HTTP error
            return False

    def wait_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not (self.is_ready() and self.is_healthy()):
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(POLL_SECONDS)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Waits until a condition is true, and returns its value."""
        deadline = time.monotonic() + START_SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, self.output()
            time.sleep(POLL_SECONDS)
        return found

    def stop(self) -> int:
        """Stops the stack and returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


def environment(home: Path, **settings: str) -> dict[str, str]:
    """Returns the machine's environment with these settings in place of allm's own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ALLM_")}
    return {**inherited, "ALLM_HOME": str(home), "ALLM_METRICS_PORT": "0", **settings}


@contextmanager
def running_stack(
    home: Path, *, python: str = sys.executable, folder: Path | None = None, **settings: str
) -> Iterator[Stack]:
    """Runs `allm serve` with the demo model, as a user would, until the block ends.

    `python`: the environment's. `folder`: where it is started; here by default.
    """
    port = free_port()
    defaults = {
        "ALLM_PORT": str(port),
        "ALLM_MODELS": f"{MODEL}={demo_model()}",
        "ALLM_ALIASES": f"{ALIAS}={MODEL}",
        "ALLM_AUDIO_REPLICAS": "0",  # tests of audio or images set it; the others start sooner
        "ALLM_IMAGE_REPLICAS": "0",
    }
    home.mkdir(parents=True, exist_ok=True)
    with (home / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [python, "-m", "services.cli", "serve"],
            cwd=folder,
            env=environment(home, **{**defaults, **settings}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    stack = Stack(process, home, port)
    try:
        stack.wait_healthy()
        yield stack
        if process.poll() is None:
            assert stack.stop() == 0, stack.output()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
