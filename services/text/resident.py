"""A model in a worker process of its own, whatever it does there: its requests, and the watchdog beside them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from services.residency.worker import WorkerDied, WorkerProcess
from services.rpc import metrics
from services.rpc.errors import AllmError, Internal, Overloaded, Timeout, from_code
from services.rpc.settings import TextSettings
from services.text.engine.messages import Accepted, Cancel, Counters, Encoded, FromWorker, Refused, Stepped, Stop

log = logging.getLogger(__name__)

WATCH_INTERVAL = 1.0  # seconds between two looks of the watchdog


class Pending:
    """A request that a worker has taken, or will."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.prompt = ""  # the text of a prompt that was given as tokens, once it is accepted
        self.started = time.monotonic()
        self.finished = False
        self._error: AllmError | None = None
        self._news = asyncio.Event()

    async def accepted(self) -> int:
        """Waits until what was asked is tokenized; gives its tokens. Raises the error that ended the request."""
        while not self.prompt_tokens:
            await self._wait()
        return self.prompt_tokens

    def accept(self, prompt_tokens: int, prompt: str = "") -> None:
        """What was asked is tokenized and fits."""
        self.prompt_tokens, self.prompt = prompt_tokens, prompt
        self._news.set()

    def fail(self, error: AllmError) -> None:
        """Ends the request with an error, after what is there already."""
        if not self.finished:
            self.finished, self._error = True, error
            self._news.set()

    async def _wait(self) -> None:
        """Waits for news. Raises the error that ended the request."""
        if self._error:
            raise self._error
        await self._news.wait()
        self._news.clear()


P = TypeVar("P", bound=Pending)


class ModelInWorker(ABC, Generic[P]):
    """The service's side of a worker that has loaded a model; `P` is what a request is here."""

    def __init__(
        self, model_id: str, worker: WorkerProcess[FromWorker], max_sequences: int, settings: TextSettings
    ) -> None:
        """Takes over a worker that is ready."""
        self._model_id = model_id
        self._worker = worker
        self._settings = settings
        self._max_sequences = max_sequences
        self._requests: dict[int, P] = {}
        self._ids = itertools.count(1)
        self._progress = time.monotonic()  # when the worker last got something done
        self._stalled = False
        self.counters = Counters(0, 0, 0, 0, 0, 0)
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
        if not self.alive:
            raise Internal(f"the worker of {self._model_id} has just ended; ask again")
        if len(self._requests) >= self._max_sequences + self._settings.queue_limit:
            raise Overloaded(
                f"{self._model_id} is busy: {self._max_sequences} requests run and {self._settings.queue_limit} "
                "wait (ALLM_QUEUE_LIMIT)"
            )
        request = next(self._ids)
        self._requests[request] = pending
        limit = self._settings.request_seconds
        late = Timeout(f"the request took longer than {limit:g} seconds (ALLM_REQUEST_SECONDS)")
        timer = asyncio.get_running_loop().call_later(limit, self._expire, request, late)
        self._worker.send(message(request))
        try:
            yield pending
        finally:
            timer.cancel()
            if self._requests.pop(request, None) and self.alive:
                self._worker.send(Cancel(request))

    # --- what the worker says

    @abstractmethod
    def _step(self, message: Stepped | Encoded) -> None:
        """Hands over what a step of the worker brought."""

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

    def _take(self, message: FromWorker) -> None:
        if not isinstance(message, Accepted):  # that one comes from a thread which runs on when the loop hangs
            self._progress = time.monotonic()
        if isinstance(message, Stepped | Encoded):
            self._step(message)
            self._count(message.counters)
        elif isinstance(message, Accepted):
            if pending := self._requests.get(message.request):
                pending.accept(message.prompt_tokens, message.prompt)
        elif isinstance(message, Refused) and (pending := self._requests.pop(message.request, None)):
            pending.fail(from_code(message.code, message.message, message.param))

    def _count(self, counters: Counters) -> None:
        self.counters = counters
        metrics.RUNNING.labels(self._model_id).set(counters.running)
        metrics.WAITING.labels(self._model_id).set(counters.waiting)
        metrics.ACTIVE_CELLS.labels(self._model_id).set(counters.active_cells)
        metrics.CACHED_CELLS.labels(self._model_id).set(counters.cached_cells)
        metrics.PREEMPTED.labels(self._model_id).set(counters.preempted)
        metrics.STEPS.labels(self._model_id).set(counters.steps)

    # --- when it goes wrong

    def _died(self, how: str) -> None:
        log.error("worker died", extra={"model": self._model_id, "how": how})
        self.alive = False
        metrics.WORKER_DEATHS.labels(self._model_id).inc()
        self._count(Counters(self.counters.steps, 0, 0, 0, 0, self.counters.preempted))
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
        limit = self._settings.stall_seconds
        while self.alive:
            await asyncio.sleep(min(WATCH_INTERVAL, limit / 2))
            oldest = next(iter(self._requests.values()), None)
            if oldest and time.monotonic() - max(self._progress, oldest.started) > limit:
                log.error("worker stalled", extra={"model": self._model_id, "seconds": limit})
                self._stalled = True
                self._worker.kill()
                return
