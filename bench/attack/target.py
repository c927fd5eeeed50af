"""The stack under attack, with a key for the attacker and one for the bystander."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from bench.process import Launch, free_port, running

CHAT, EMBEDDINGS = "smollm2-135m-instruct", "all-minilm-l6-v2"


@dataclass(frozen=True, slots=True)
class Target:
    """A running stack."""

    url: str
    pid: int  # of `allm serve`
    attacker: str  # API keys
    bystander: str

    host: str = "127.0.0.1"

    @property
    def port(self) -> int:
        """The port of the gateway."""
        return int(self.url.rpartition(":")[2])

    def client(self, key: str) -> httpx.AsyncClient:
        """Returns a client with a key; empty: without one."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=300.0, limits=limits, trust_env=False)

    def memory(self) -> dict[str, int]:
        """Returns the resident bytes of each process, by its name and id."""
        found = {}
        for process in psutil.Process(self.pid).children(recursive=True):
            try:
                words = process.cmdline()
                name = words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name
                found[f"{name} {process.pid}"] = process.memory_info().rss
            except (psutil.NoSuchProcess, IndexError):
                continue
        return found


@contextmanager
def started() -> Iterator[Target]:
    """Starts `allm serve` with keys, its settings as installed, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="allm-attack-") as folder:
        port = free_port()
        environment = {"ALLM_HOME": folder, "ALLM_PORT": str(port), "ALLM_METRICS_PORT": "0", "ALLM_AUTH": "keys"}
        command = [sys.executable, "-m", "services.cli"]
        launch = Launch(
            "allm", [*command, "serve"], port, "/healthz", Path(folder) / "attack.log", environment, model=CHAT
        )

        def key(name: str) -> str:
            arguments = [*command, "keys", "create", name, "--json"]
            made = subprocess.run(
                arguments, env={**os.environ, **environment}, check=True, capture_output=True, timeout=60
            )
            text: str = json.loads(made.stdout)["secret"]
            return text

        with running(launch) as server:
            yield Target(server.url, server.pid, key("attacker"), key("bystander"))
