"""The common part of all loops in a worker: they take messages between steps, bound the time of steps, and end with a
Stop; and the fair turns of their callers.

Engines import this module, so it imports nothing that a runtime does not need.
"""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from services.worker.messages import EngineError, Phase, Stop
from services.worker.spinning import Spinning

M = TypeVar("M")

DEADLINE_PASSED = EngineError("TIMEOUT", "the caller's deadline has passed")
STEP_SECONDS = 5.0  # target maximum of a step


class HasDeadline(Protocol):
    """A request with a deadline."""

    @property
    def deadline(self) -> float:
        """The time after which the caller has given up, on the monotonic clock; infinity: never."""


D = TypeVar("D", bound=HasDeadline)


class WorkerLoop(ABC, Generic[M]):
    """A loop that serves requests. Another thread fills `inbox`; `send` sends to the service."""

    def __init__(self, inbox: queue.SimpleQueue[Any], send: Callable[[object], None]) -> None:
        self._inbox = inbox
        self._send = send
        self._stopped = False
        self._spinning = Spinning()
        self._phases: list[Phase] = []  # that requests have entered since the last report

    def run(self) -> None:
        """Serves until a Stop arrives."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Takes messages and advances once; waits for a message if idle. Returns False after a Stop."""
        self._take_messages(None if self._is_idle() else 0.0)
        if not self._stopped:
            self._advance()
            self._spinning.look()
        return not self._stopped

    @abstractmethod
    def _is_idle(self) -> bool:
        """True if there is nothing to do until a message arrives."""

    @abstractmethod
    def _take(self, message: M) -> None:
        """Takes a message."""

    @abstractmethod
    def _advance(self) -> None:
        """Runs at most one step, or one in each lane, and reports it."""

    def _take_messages(self, seconds: float | None = 0.0) -> None:
        """Takes all queued messages; waits up to `seconds` for the first one, indefinitely for None."""
        while not self._stopped:
            try:
                message = self._inbox.get(seconds != 0.0, seconds)
            except queue.Empty:
                return
            seconds = 0.0
            if isinstance(message, Stop):
                self._stopped = True
            else:
                self._take(message)

    def _refuse(self, request: int, error: EngineError) -> None:
        self._send(error.refusal(request))


def expired(requests: Iterable[D]) -> list[D]:
    """Returns the requests whose deadline has passed."""
    now = time.monotonic()
    return [request for request in requests if request.deadline <= now]


class Pace:
    """The work limit of a step, adapted to measured steps so that a step takes a bounded time on any machine.

    Cancelled requests, deadlines and the watchdog wait for the current step: on a slow processor a prompt that a GPU
    computes in one step would block them for minutes. The limit is `least` times a power of two, or `most`, so it
    changes rarely.
    """

    def __init__(self, least: int, most: int, start: int | None = None, seconds: float = STEP_SECONDS) -> None:
        """`least` and `most`: bounds of the limit; `start`: the first limit, None: `least`; `seconds`: the target time
        of a step."""
        self._least = min(least, most)
        self._most = most
        self._seconds = seconds
        self.limit = self._least if start is None else min(start, most)

    def took(self, amount: int, seconds: float) -> None:
        """Records a step. A step that took too long shrinks the limit immediately; a short one near the limit raises
        it."""
        if 2 * amount < self._least:
            return  # too small to extrapolate from; a full step of unequal parts may be half empty
        fitting = amount * self._seconds / max(seconds, 1e-6)
        if seconds > 2 * self._seconds or (fitting > 2 * self.limit and 2 * amount >= self.limit):
            self.limit = self._fit(fitting)

    def _fit(self, amount: float) -> int:
        limit = self._least
        while 2 * limit <= min(amount, self._most):
            limit *= 2
        return self._most if amount >= self._most else limit


class Waits(Protocol):
    """A request that waits for a turn."""

    @property
    def request(self) -> int:
        """Id; rises with every request."""

    @property
    def client(self) -> str:
        """The client of the request."""


W = TypeVar("W", bound=Waits)


class Turns:
    """The latest turns of clients and requests."""

    def __init__(self) -> None:
        self._now = 0
        self._clients: dict[str, int] = {}
        self._requests: dict[int, int] = {}

    def next(self, waiting: Iterable[W]) -> W | None:
        """Picks the client, then its request, that waited longest for a turn; the oldest of several. Takes the turn.

        A client that never had a turn comes first.
        """
        chosen = min(waiting, key=self._rank, default=None)
        if chosen is not None:
            self._now += 1
            self._clients[chosen.client] = self._requests[chosen.request] = self._now
        return chosen

    def forget(self, gone: Waits, left: Iterable[Waits]) -> None:
        """Forgets a request that is over; `left` are the remaining ones."""
        self._requests.pop(gone.request, None)
        if all(other.client != gone.client for other in left):
            self._clients.pop(gone.client, None)

    def _rank(self, one: Waits) -> tuple[int, int, int]:
        return self._clients.get(one.client, 0), self._requests.get(one.request, 0), one.request
