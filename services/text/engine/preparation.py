"""The thread of a worker that tokenizes requests and compiles their grammars while steps run; clients take turns."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from services.text.engine.messages import Embed, Hold, Rank, Submit
from services.worker.messages import Cancel

Preparing = Generator[None, None, object | None]


class Preparation:
    """Prepares requests and passes them to the loop, with all other messages.

    The client that has waited longest gets the next turn. A request may take several: an input of a request for
    embeddings is one turn, and so is a document. A request that is cancelled before it is prepared goes no further.
    """

    def __init__(self, prepare: Callable[[Any], Preparing], inbox: queue.SimpleQueue[Any]) -> None:
        """`prepare` yields between two turns and returns what the loop takes; None: it has refused the request."""
        self._prepare = prepare
        self._inbox = inbox
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[tuple[int, Preparing]]] = {}  # by client; the first client is next
        self._running = 0  # the request that has its turn; 0: none, because requests are numbered from 1

    def take(self, message: Submit | Embed | Rank | Hold | Cancel) -> None:
        """Takes a message from the service, in the reader thread."""
        with self._changed:
            if isinstance(message, Submit | Embed | Rank):
                self._waiting.setdefault(message.client, deque()).append((message.request, self._prepare(message)))
                self._changed.notify()
            elif not (isinstance(message, Cancel) and self._cancel(message.request)):
                self._inbox.put(message)

    def run(self) -> None:
        """Prepares requests, forever."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Waits for a request and advances it by one turn."""
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            client = next(iter(self._waiting))
            self._running, preparing = self._waiting[client][0]
        ended, prepared = False, None
        try:
            next(preparing)
        except StopIteration as end:
            ended, prepared = True, end.value
        with self._changed:
            requests = self._waiting.pop(client)
            if self._running and prepared is not None:
                self._inbox.put(prepared)
            if ended or not self._running:
                requests.popleft()
            if requests:
                self._waiting[client] = requests
            self._running = 0

    def _cancel(self, request: int) -> bool:
        """Drops a request that is not prepared yet. Returns False if there is none."""
        for client, requests in self._waiting.items():
            for at, (number, _) in enumerate(requests):
                if number != request:
                    continue
                if request == self._running:
                    self._running = 0  # its turn ends by itself
                    return True
                del requests[at]
                if not requests:
                    del self._waiting[client]
                return True
        return False
