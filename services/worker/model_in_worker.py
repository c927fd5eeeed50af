"""The service's side of a model in a worker process: its requests, their ends and their errors."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, ClassVar, Generic, TypeVar

from services.errors import AllmError, Internal, ModelNotReady, Overloaded, Timeout, from_code
from services.rpc.deadline import caller_deadline
from services.telemetry import metrics, tracing
from services.telemetry.figures import EVENTS
from services.telemetry.metrics import ModelPart
from services.worker.messages import Cancel, Phase, RequestRefused, Stop
from services.worker.process import WorkerDied, WorkerProcess
from services.worker.request_queue import Pending, RequestLimits, RequestQueue
from services.worker.watchdog import Watchdog

log = logging.getLogger(__name__)
JUST = 1.0  # seconds after its start in which a request may still be unread when the worker dies
CLOSE_SECONDS = 1.0  # how long `close` waits for the requests of a dead worker to get the reason
RETRY_SECONDS = 1.0  # retry_after while a new worker starts
P = TypeVar("P", bound=Pending)
M = TypeVar("M")


class ModelInWorker(ABC, Generic[P, M]):
    """The service's side of a worker with a loaded model.

    `P` is the type of a request, `M` the union of the messages that the worker sends.
    """

    # Messages of a worker thread that keeps running when its loop hangs: they do not count as progress.
    no_progress: ClassVar[tuple[type, ...]] = ()

    def __init__(self, model_id: str, worker: WorkerProcess[M], limits: RequestLimits) -> None:
        """Takes over a worker that is ready."""
        self._model_id = model_id
        self._worker = worker
        self._limits = limits
        self._requests: RequestQueue[P] = RequestQueue(model_id, limits)
        self._ids = itertools.count(1)
        self._stalled = False
        self._closed = False
        self._counts = (0, 0)  # running and waiting requests, from the worker's last report
        self._part = ModelPart(model_id)
        self._part.set(metrics.LOADED, 1)
        for metric in (metrics.WORKER_DEATHS, metrics.WORKER_RESTARTS, metrics.OVERRUNS):
            metric.labels(model_id)  # start at 0: Prometheus would miss the increase to a first 1
        self.problem: AllmError | None = None  # why it takes no more requests
        # In a new context, so that the tasks' logs do not carry the request that caused the load.
        self._listening = asyncio.create_task(self._listen(), context=Context())
        self._watchdog = Watchdog(model_id, limits.stall_seconds, owed=self._owed, stall=self._stall)
        self._watching = asyncio.create_task(self._watchdog.run(lambda: self.alive), context=Context())

    @property
    def alive(self) -> bool:
        """True while it takes requests. False as soon as the worker's end is visible, even before it is handled."""
        return not (self._closed or self._stalled or self._worker.ended)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._worker.pid

    @property
    def peak_memory(self) -> int:
        """The worker's peak memory, in bytes."""
        return self._worker.peak_memory

    async def close(self) -> None:
        """Stops the worker; requests that still run end with INTERNAL."""
        self._closed = True
        self._part.close()
        if self._worker.ended or self._stalled:  # its requests must get the reason of its end
            await asyncio.wait([self._listening], timeout=CLOSE_SECONDS)
        for task in (self._listening, self._watching):
            task.cancel()
        await asyncio.gather(self._listening, self._watching, return_exceptions=True)
        self._end(f"{self._model_id} is being unloaded")
        await self._worker.close(ask=lambda: self._worker.send(Stop()))

    @contextmanager
    def _open(self, pending: P, message: Callable[[int], Any]) -> Iterator[P]:
        """Sends the message that `message` builds from the request's number; the request runs until the block ends.

        Raises:
            Overloaded: the queue is full, or too long for the caller's deadline.
            ModelNotReady: the worker has just ended; the next lease gets a new one.
            Timeout: the caller's deadline has passed.
        """
        deadline = caller_deadline()
        if not self.alive:
            raise ModelNotReady(f"the worker of {self._model_id} just ended; try again", retry_after=RETRY_SECONDS)
        if (displaced := self._requests.admit(pending.caller, deadline)) is not None:
            self._worker.send(Cancel(displaced))
        seconds = self._limits.seconds
        variable = self._limits.seconds_variable
        pending.late = Timeout(f"the request took longer than {seconds:g} seconds ({variable})")
        if deadline and deadline.remaining < seconds:
            seconds, pending.late = deadline.remaining, deadline.error()
        if seconds <= 0:
            raise pending.late
        request = next(self._ids)
        timer = asyncio.get_running_loop().call_later(seconds, self._expire, request)
        self._requests[request] = pending
        self._requests.count()
        self._set_gauges(*self._counts)
        try:
            self._worker.send(message(request))
            yield pending
        finally:
            timer.cancel()
            if self._requests.pop(request, None) and self.alive:
                self._worker.send(Cancel(request))
            self._requests.count(ended=pending.finished and not pending.failed)
            if tracing.tracer:
                tracing.record_phases(pending.phases, pending.ended, pending.counts, pending.problem)
            self._set_gauges(*self._counts)

    # --- messages from the worker

    def _entered(self, phases: Iterable[Phase]) -> None:
        """Records phases that requests have entered."""
        for phase in phases:
            if pending := self._requests.get(phase.request):
                if len(pending.phases) == 1 and pending.queued_since is not None:
                    metrics.QUEUED.labels(self._model_id).observe(max(0.0, phase.at - pending.queued_since))
                pending.enter(phase)

    def _set_gauges(self, running: int, waiting: int) -> None:
        """Sets the gauges of running and waiting requests. Requests that the worker has not read yet are waiting."""
        self._counts = running, waiting
        self._part.set(metrics.RUNNING, running)
        self._part.set(metrics.WAITING, max(waiting, len(self._requests) - running))

    @abstractmethod
    def _handle(self, message: M) -> None:
        """Handles a message of the worker about its requests, except RequestRefused."""

    @abstractmethod
    def _reset(self) -> None:
        """Resets the counters after the worker died."""

    async def _listen(self) -> None:
        try:
            async for message in self._worker.messages():
                self._take(message)
        except WorkerDied as death:
            self._died(str(death))
        except Exception:
            log.exception("cannot read a message of the worker", extra={"model": self._model_id})
            self._worker.kill()
            self._died(f"worker {self.pid} of {self._model_id} sent an unreadable message")

    def _take(self, message: M) -> None:
        if self._is_progress(message):
            self._watchdog.progress()
        if not isinstance(message, RequestRefused):
            self._handle(message)
        elif pending := self._requests.pop(message.request, None):
            error = from_code(message.code, message.message, message.param)
            if isinstance(error, Overloaded):
                error.retry_after = self._requests.retry_after()
            late = pending.late if isinstance(error, Timeout) else None
            pending.fail(late or error)

    def _is_progress(self, message: M) -> bool:
        """True if a message proves progress of the batch loop. A refusal does not, because other threads send it,
        too."""
        return not isinstance(message, (*self.no_progress, RequestRefused))

    # --- failures

    def _owed(self) -> float | None:
        """Since when the worker owes progress to a request; None if it owes none."""
        return min((each.owed for each in self._requests.values() if each.owed is not None), default=None)

    def _died(self, how: str) -> None:
        log.error("worker died", extra={"model": self._model_id, "how": how})
        self._closed = True
        self.problem = self.problem or Internal(how)
        metrics.WORKER_DEATHS.labels(self._model_id).inc()
        EVENTS.record("worker_died", self._model_id)
        self._reset()
        self._part.close()
        self._end(how)

    def _expire(self, request: int) -> None:
        """Ends a request whose time is up, and frees its slot even if its caller does not read."""
        if pending := self._requests.pop(request, None):
            pending.fail(pending.late or Timeout("the request took too long"))
            self._worker.send(Cancel(request))

    def _end(self, how: str) -> None:
        """Ends all requests. Those that the worker has probably not read yet get a retryable error."""
        now = time.monotonic()
        for pending in self._requests.take_all():
            if pending.begun or now - pending.started > JUST:
                pending.fail(Internal(how))
            else:
                pending.fail(ModelNotReady(f"{how}, before it started; try again", retry_after=RETRY_SECONDS))

    def _stall(self, limit: float) -> None:
        """Kills the worker and ends its requests immediately: a process that hangs in the kernel may never exit."""
        log.error("worker stalled", extra={"model": self._model_id, "seconds": limit, "pid": self.pid})
        how = f"{self._model_id} made no progress for {limit:g} seconds (ALLM_STALL_SECONDS) and was ended"
        self._stalled, self.problem = True, Timeout(how)
        self._worker.kill()
        for pending in self._requests.take_all():
            pending.fail(Timeout(how))
