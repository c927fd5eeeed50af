"""Concurrent clients of `/v1/images/generations`, each with a persistent connection."""

from __future__ import annotations

import base64
import http.client
import io
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import msgspec
from PIL import Image

from bench.image_pipeline import SIDE, Level, Plan, Timing, prompt_of

PATH = "/v1/images/generations"
TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.5


class DrawingError(Exception):
    """A request failed."""


class _Connections(threading.local):
    """The connection of each client, which is a thread."""

    connection: http.client.HTTPConnection | None = None


class Callers:
    """The clients of one server."""

    def __init__(self, url: str, model: str, plan: Plan) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._model = model
        self._plan = plan
        self._own = _Connections()

    def run(self, level: Level) -> Timing:
        """Requests each image once, one at a time for each client of the level. Raises DrawingError."""
        with ThreadPoolExecutor(level.clients) as pool:
            started = time.perf_counter()
            answers = list(pool.map(self._ask, level.seeds))
            wall = time.perf_counter() - started
        return Timing(wall, [seconds for seconds, _ in answers], [_pixels(content) for _, content in answers])

    def wait_ready(self, seconds: float, seeds: Sequence[int]) -> None:
        """Polls until the model answers. Raises the last error after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.run(Level(len(seeds), seeds))
            except (DrawingError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _ask(self, seed: int) -> tuple[float, bytes]:
        connection = self._own.connection
        if connection is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
            self._own.connection = connection
        started = time.perf_counter()
        connection.request("POST", PATH, self._body(seed), {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        seconds = time.perf_counter() - started
        if response.status != http.HTTPStatus.OK:
            raise DrawingError(f"HTTP {response.status}: {content[:300].decode('utf-8', 'replace')}")
        return seconds, content

    def _body(self, seed: int) -> bytes:
        plan = self._plan
        return msgspec.json.encode(
            {
                "model": self._model,
                "prompt": prompt_of(seed),
                "size": f"{SIDE}x{SIDE}",
                "seed": seed,
                "steps": plan.steps,
                "guidance": plan.guidance,
                "scheduler": plan.scheduler,
            }
        )


def _pixels(content: bytes) -> bytes:
    file = base64.b64decode(msgspec.json.decode(content)["data"][0]["b64_json"])
    return Image.open(io.BytesIO(file)).convert("RGB").tobytes()
