"""The work of a running stack, by the runtimes' own counters, and callers who disconnect early."""

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

import psutil

from tests.stack import POLL_SECONDS, Stack

PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Runtime:
    """A model of a stack, and the service that runs it."""

    stack: Stack
    service: str  # text, audio or image
    model: str

    def counter(self, name: str) -> float:
        """Returns a metric of the service; 0 before the model is loaded."""
        with urllib.request.urlopen(self.stack.note["metrics"][self.service], timeout=PATIENCE_SECONDS) as reply:
            found = re.search(
                rf'^{name}{{model="{re.escape(self.model)}"}} (\S+)$', reply.read().decode(), re.MULTILINE
            )
        return float(found[1]) if found else 0.0

    @property
    def steps(self) -> float:
        """Returns the number of computed steps."""
        return self.counter("allm_engine_steps_total")

    @property
    def running(self) -> float:
        """Returns the number of running requests."""
        return self.counter("allm_requests_running")

    @property
    def idle(self) -> bool:
        """Returns true when no request runs or waits."""
        return self.running == 0 and self.counter("allm_requests_waiting") == 0

    @property
    def ended(self) -> float:
        """Returns the number of requests that the service counts as ended, successful or not."""
        with urllib.request.urlopen(self.stack.note["metrics"][self.service], timeout=PATIENCE_SECONDS) as reply:
            pattern = rf'^allm_requests_total{{[^}}]*model="{re.escape(self.model)}"[^}}]*}} (\S+)$'
            return sum(map(float, re.findall(pattern, reply.read().decode(), re.MULTILINE)))

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Suspends the service's workers until the service counts one more ended request.

        A caller who hangs up inside the block is cancelled before the next step, however busy the machine is.
        """
        service = psutil.Process(self.stack.note["children"][self.service])
        workers = [each for each in service.children() if f"services.{self.service}.engine" in each.cmdline()]
        before = self.ended
        for worker in workers:
            worker.suspend()
        try:
            yield
            self.wait_until(lambda: self.ended > before)
        finally:
            for worker in workers:
                worker.resume()

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Waits until a condition is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.stack.output()
            time.sleep(POLL_SECONDS)


@contextmanager
def asked(
    stack: Stack, path: str, body: bytes, kind: str = "application/json", headers: Mapping[str, str] | None = None
) -> Iterator[http.client.HTTPConnection]:
    """Sends a request whose response is still to be read. Leaving the block hangs up."""
    with closing(http.client.HTTPConnection("127.0.0.1", stack.port, timeout=PATIENCE_SECONDS)) as connection:
        connection.request("POST", path, body, {"content-type": kind, **(headers or {})})
        yield connection


def answer(connection: http.client.HTTPConnection) -> tuple[int, Any]:
    """Reads a whole response: its status, and its JSON."""
    with closing(connection.getresponse()) as response:
        return response.status, json.loads(response.read())
