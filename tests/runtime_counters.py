"""What a running stack computes, by the runtimes' own counters, and callers who leave before it is done."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from stack import POLL_SECONDS, Stack

PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Runtime:
    """A model of a stack, and the service that runs it."""

    stack: Stack
    service: str  # text, audio or image
    model: str

    def counter(self, name: str) -> float:
        """A metric as the service tells it; 0 before the model is loaded."""
        with urllib.request.urlopen(self.stack.note["metrics"][self.service], timeout=PATIENCE_SECONDS) as reply:
            found = re.search(
                rf'^{name}{{model="{re.escape(self.model)}"}} (\S+)$', reply.read().decode(), re.MULTILINE
            )
        return float(found[1]) if found else 0.0

    @property
    def steps(self) -> float:
        """Steps that were computed."""
        return self.counter("allm_engine_steps_total")

    @property
    def running(self) -> float:
        """Requests that have a place."""
        return self.counter("allm_requests_running")

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        return self.running == 0 and self.counter("allm_requests_waiting") == 0

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Waits for something to become true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.stack.output()
            time.sleep(POLL_SECONDS)


@contextmanager
def asked(
    stack: Stack, path: str, body: bytes, kind: str = "application/json", headers: Mapping[str, str] | None = None
) -> Iterator[http.client.HTTPConnection]:
    """A request that is sent, and whose response is still to be read. Leaving hangs up."""
    with closing(http.client.HTTPConnection("127.0.0.1", stack.port, timeout=PATIENCE_SECONDS)) as connection:
        connection.request("POST", path, body, {"content-type": kind, **(headers or {})})
        yield connection


def answer(connection: http.client.HTTPConnection) -> tuple[int, Any]:
    """Waits for a whole response: its status, and its JSON."""
    with closing(connection.getresponse()) as response:
        return response.status, json.loads(response.read())
