"""A model in a worker process of its own, whatever it does there: its requests, and the watchdog beside them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from services.residency.messages import Cancel, Refused, Stop
from services.residency.worker import WorkerDied, WorkerProcess
from services.rpc import metrics
from services.rpc.errors import AllmError, Internal, Overloaded, Timeout, from_code

log = logging.getLogger(__name__)

WATCH_INTERVAL = 1.0  # seconds between two looks of the watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """How much a worker is asked at once, and for how long; with the variables that an operator can change."""

    running: int  # requests that have a place
    queue: int  # requests that may wait for one
    queue_variable: str = "ALLM_QUEUE_LIMIT"
    seconds: float  # a request that takes longer ends with TIMEOUT
    seconds_variable: str = "ALLM_REQUEST_SECONDS"
    stall_seconds: float  # a worker that owes something and says nothing for so long is killed


class Pending:
    """A request that a worker has taken, or will."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.owed: float | None = self.started  # since when the worker owes something; None: it waits for us
        self.finished = False
        self._error: AllmError | None = None
        self._news = asyncio.Event()

    def fail(self, error: AllmError) -> None:
        """Ends the request with an error, after what is there already."""
        if not self.finished:
            self.finished, self._error = True, error
            self._news.set()

    async def _wait(self) -> None:
        """Waits for news. Raises the error that ended the request."""
        self._check()
        await self._news.wait()
        self._news.clear()

    def _check(self) -> None:
        """Raises the error that ended the request, if one did."""
        if self._error:
            raise self._error


P = TypeVar("P", bound=Pending)
M = TypeVar("M")


class ModelInWorker(ABC, Generic[P, M]):
    """The service's side of a worker that has loaded a model.

    `P` is what a request is here, `M` the union of the messages that the worker sends.
    """

    # Messages of a thread of the worker that runs on when its loop hangs: they are no sign of progress.
    beside: ClassVar[tuple[type, ...]] = ()

    def __init__(self, model_id: str, worker: WorkerProcess[M], limits: RequestLimits) -> None:
        """Takes over a worker that is ready."""
        self._model_id = model_id
        self._worker = worker
        self._limits = limits
        self._requests: dict[int, P] = {}
        self._ids = itertools.count(1)
        self._progress = time.monotonic()  # when the worker last got something done
        self._stalled = False
        self.alive = True
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._worker.pid

    @property
    def peak_memory(self) -> int:
        """The most memory that the worker has held, in bytes."""
        return self._worker.peak_memory

    async def close(self) -> None:
        """Ends the worker; requests that still run end with INTERNAL."""
        self.alive = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end(Internal(f"{self._model_id} is being unloaded"))
        await self._worker.close(ask=lambda: self._worker.send(Stop()))

    @contextmanager
    def _open(self, pending: P, message: Callable[[int], Any]) -> Iterator[P]:
        """Sends what `message` makes for a request's number; the request runs as long as the block does.

        Raises:
            Overloaded: the queue is full.
        """
        limits = self._limits
        if not self.alive:
            raise Internal(f"the worker of {self._model_id} has just ended; ask again")
        if len(self._requests) >= limits.running + limits.queue:
            raise Overloaded(
                f"{self._model_id} is busy: {limits.running} requests run and {limits.queue} "
                f"wait ({limits.queue_variable})"
            )
        request = next(self._ids)
        self._requests[request] = pending
        late = Timeout(f"the request took longer than {limits.seconds:g} seconds ({limits.seconds_variable})")
        timer = asyncio.get_running_loop().call_later(limits.seconds, self._expire, request, late)
        self._worker.send(message(request))
        try:
            yield pending
        finally:
            timer.cancel()
            if self._requests.pop(request, None) and self.alive:
                self._worker.send(Cancel(request))

    # --- what the worker says

    @abstractmethod
    def _heard(self, message: M) -> None:
        """Hands over what the worker says of its requests; a refusal never comes here."""

    @abstractmethod
    def _emptied(self) -> None:
        """The worker died: nothing runs there any more."""

    async def _listen(self) -> None:
        try:
            async for message in self._worker.messages():
                self._take(message)
        except WorkerDied as death:
            self._died(str(death))
        except Exception:
            log.exception("cannot understand the worker", extra={"model": self._model_id})
            self._worker.kill()
            self._died(f"worker {self.pid} of {self._model_id} sent what cannot be read")

    def _take(self, message: M) -> None:
        if not isinstance(message, self.beside):
            self._progress = time.monotonic()
        if not isinstance(message, Refused):
            self._heard(message)
        elif pending := self._requests.pop(message.request, None):
            pending.fail(from_code(message.code, message.message, message.param))

    # --- when it goes wrong

    def _died(self, how: str) -> None:
        log.error("worker died", extra={"model": self._model_id, "how": how})
        self.alive = False
        metrics.WORKER_DEATHS.labels(self._model_id).inc()
        self._emptied()
        self._end(Timeout(f"{self._model_id} made no progress and was ended") if self._stalled else Internal(how))

    def _expire(self, request: int, error: AllmError) -> None:
        """Ends a request whose time is over, and frees its place even while its caller does not read."""
        if pending := self._requests.pop(request, None):
            pending.fail(error)
            self._worker.send(Cancel(request))

    def _end(self, error: AllmError) -> None:
        requests, self._requests = self._requests, {}
        for pending in requests.values():
            pending.fail(error)

    async def _watch(self) -> None:
        """Kills a worker that owes answers and says nothing: that is the one sure way out of hung native code."""
        limit = self._limits.stall_seconds
        while self.alive:
            await asyncio.sleep(min(WATCH_INTERVAL, limit / 2))
            owed = min((each.owed for each in self._requests.values() if each.owed is not None), default=None)
            if owed is not None and time.monotonic() - max(self._progress, owed) > limit:
                log.error("worker stalled", extra={"model": self._model_id, "seconds": limit})
                self._stalled = True
                self._worker.kill()
                return
