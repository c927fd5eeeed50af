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

# Loopback has no limit of its own, because there a local proxy may be the only client.
ADDRESS_CONNECTIONS = 2500  # the default beyond loopback
BYSTANDER_ADDRESS = "127.0.0.2"  # the attacker's is 127.0.0.1
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
        return self._client(key, httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None)))

    def bystanding_client(self) -> httpx.AsyncClient:
        """Returns a client of the bystander: it has another address, and opens a connection for each request."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return self._client(self.bystander, httpx.AsyncHTTPTransport(limits=limits, local_address=BYSTANDER_ADDRESS))

    def _client(self, key: str, transport: httpx.AsyncHTTPTransport) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=300.0, transport=transport)

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
    """Starts `allm serve` with keys, in a folder of its own, its settings those of a listener beyond loopback."""
    with tempfile.TemporaryDirectory(prefix="allm-attack-") as folder:
        port = free_port()
        environment = {
            "ALLM_HOME": folder,
            "ALLM_PORT": str(port),
            "ALLM_METRICS_PORT": "0",
            "ALLM_AUTH": "keys",
            "ALLM_GATEWAY_CONNECTIONS_PER_ADDRESS": str(ADDRESS_CONNECTIONS),
        }
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
