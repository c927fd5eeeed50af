"""Concurrent clients of `/v1/audio/transcriptions`, each with a persistent connection."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import msgspec

from bench.audio_library import Timing
from bench.audio_material import Recording, recording

PATH = "/v1/audio/transcriptions"
BOUNDARY = "----allm-bench"
TIMEOUT_SECONDS = 600.0


class UploadError(Exception):
    """A request failed."""


class _Connections(threading.local):
    """The connection of each client, which is a thread."""

    connection: http.client.HTTPConnection | None = None


class Clients:
    """The clients of one server."""

    def __init__(self, url: str, model: str, *, vad: bool) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._fields = {"model": model, "response_format": "json", "vad_filter": "true" if vad else "false"}
        self._own = _Connections()

    def run(self, clips: Sequence[int], clients: int) -> Timing:
        """Sends each clip once, `clients` at a time. Raises UploadError."""
        bodies = [self._body(recording(number)) for number in clips]
        with ThreadPoolExecutor(clients) as pool:
            started = time.perf_counter()
            answers = list(pool.map(self._send, bodies))
            wall = time.perf_counter() - started
        return Timing(wall, [seconds for seconds, _ in answers], [text for _, text in answers])

    def _body(self, clip: Recording) -> bytes:
        head = "".join(
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in self._fields.items()
        )
        head += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{clip.name}"\r\n'
        return head.encode() + b"Content-Type: audio/wav\r\n\r\n" + clip.content + f"\r\n--{BOUNDARY}--\r\n".encode()

    def _send(self, body: bytes) -> tuple[float, str]:
        connection = self._own.connection
        if connection is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
            self._own.connection = connection
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        started = time.perf_counter()
        connection.request("POST", PATH, body, headers)
        response = connection.getresponse()
        content = response.read()
        seconds = time.perf_counter() - started
        if response.status != 200:
            raise UploadError(f"HTTP {response.status}: {content[:300].decode('utf-8', 'replace')}")
        return seconds, str(msgspec.json.decode(content)["text"])


def until_ready(clients: Clients, seconds: float) -> Iterator[str]:
    """Polls until the model answers; yields the errors before that. Raises the last UploadError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            clients.run([0], 1)
        except (UploadError, OSError) as error:
            if time.monotonic() > deadline:
                raise
            yield str(error)
            time.sleep(0.5)
        else:
            return
