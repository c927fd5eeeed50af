"""The service's side of a model in a worker process: its requests, their ends and their errors."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, ClassVar, Generic, TypeVar

from services.errors import AllmError, Internal, ModelNotReady, Overloaded, Timeout, from_code
from services.rpc.deadline import Deadline, caller_deadline
from services.telemetry import metrics, tracing
from services.telemetry.figures import EVENTS
from services.telemetry.metrics import ModelPart
from services.worker.messages import Cancel, Phase, Refused, Stop
from services.worker.pending import Pending, RequestLimits
from services.worker.process import WorkerDied, WorkerProcess
from services.worker.watchdog import Watchdog

KEPT = 64  # most recent completions that the rate is computed from
LEAST = 3  # completions needed for a rate
log = logging.getLogger(__name__)
JUST = 1.0  # seconds after its start in which a request may still be unread when the worker dies
CLOSE_SECONDS = 1.0  # how long `close` waits for the requests of a dead worker to get the reason
RETRY_SECONDS = 1.0  # retry_after while a new worker starts
LONGEST_RETRY_SECONDS = 60.0  # clients such as OpenAI's ignore longer ones
# A request is admitted only if its deadline is this many times the estimated wait: a request that times out shortly
# before its end has cost as much as an answer.
MARGIN = 1.5
P = TypeVar("P", bound=Pending)
M = TypeVar("M")


class CompletionRate:
    """The completed requests of a worker, on a clock that stops while the worker has free slots.

    Otherwise a quiet hour, or a single client of a worker with many slots, would make a fast worker look slow.
    """

    def __init__(self, concurrency: int) -> None:
        """`concurrency`: requests that run concurrently."""
        self._concurrency = concurrency
        self._ends: deque[float] = deque(maxlen=KEPT)  # on the clock
        self._clock = 0.0  # seconds
        self._since: float | None = None  # when the clock was started; None: it is stopped

    def count(self, requests: int, *, ended: bool = False) -> None:
        """Sets the number of current requests; `ended`: one has just completed."""
        now = self._read()
        if ended and self._since is not None:
            self._ends.append(now)
        self._clock, self._since = now, time.monotonic() if requests >= self._concurrency else None

    def seconds_for(self, requests: int) -> float | None:
        """Estimates the seconds that this many requests take to complete; None while there is no rate."""
        if len(self._ends) < LEAST:
            return None
        span = self._read() - self._ends[0]
        return requests * span / (len(self._ends) - 1)

    def _read(self) -> float:
        return self._clock + (time.monotonic() - self._since if self._since is not None else 0.0)


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
        self._requests: dict[int, P] = {}
        self._ids = itertools.count(1)
        self._stalled = False
        self._closed = False
        self._rate = CompletionRate(limits.running)
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
        self._admit(deadline, pending.caller)
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
        self._rate.count(len(self._requests))
        self._set_gauges(*self._counts)
        try:
            self._worker.send(message(request))
            yield pending
        finally:
            timer.cancel()
            if self._requests.pop(request, None) and self.alive:
                self._worker.send(Cancel(request))
            self._rate.count(len(self._requests), ended=pending.finished and not pending.failed)
            if tracing.tracer:
                tracing.record_phases(pending.phases, pending.ended, pending.counts, pending.problem)
            self._set_gauges(*self._counts)

    def _admit(self, deadline: Deadline | None, caller: str) -> None:
        """Raises the error with which a new request must be refused, if any."""
        limits = self._limits
        if not self.alive:
            raise ModelNotReady(f"the worker of {self._model_id} just ended; try again", retry_after=RETRY_SECONDS)
        present = len(self._requests)
        if present >= limits.running + limits.queue and not self._displace(caller):
            raise self._busy()
        if deadline is None or present < limits.running:
            return
        wait = self._rate.seconds_for(present + 1)
        if wait is not None and wait * MARGIN > deadline.remaining:
            message = (
                f"{self._model_id} is busy: an answer would take about {wait:.0f} seconds, too long for the request's "
                f"deadline in {max(0.0, deadline.remaining):.0f}"
            )
            raise Overloaded(message, retry_after=self._retry_after())

    def _displace(self, caller: str) -> bool:
        """Refuses the latest waiting request of the caller that has most requests, so that another caller's fits.

        Returns False if `caller` has about as many itself. So a lone caller may fill the queue, and two share it.
        """
        counts = Counter(each.caller for each in self._requests.values())
        ((most, count),) = counts.most_common(1)
        if count <= counts[caller] + 1:
            return False
        for request, pending in reversed(self._requests.items()):
            if pending.caller == most and pending.waits:
                pending.fail(self._busy())
                del self._requests[request]
                self._worker.send(Cancel(request))
                return True
        return False

    def _busy(self) -> Overloaded:
        limits = self._limits
        count = f"{limits.running} requests run and {limits.queue} wait ({limits.queue_variable})"
        return Overloaded(f"{self._model_id} is busy: {count}", retry_after=self._retry_after())

    def _retry_after(self) -> float:
        """Seconds until half of the current requests have completed, at the current rate. Until there is a rate, they
        are assumed to need as long again as the oldest has taken so far.
        """
        wait = self._rate.seconds_for(max(1, len(self._requests) // 2))
        if wait is None:
            wait = time.monotonic() - min((each.started for each in self._requests.values()), default=0.0)
        return min(wait, LONGEST_RETRY_SECONDS)

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
        """Handles a message of the worker about its requests, except Refused."""

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
        if not isinstance(message, Refused):
            self._handle(message)
        elif pending := self._requests.pop(message.request, None):
            error = from_code(message.code, message.message, message.param)
            if isinstance(error, Overloaded):
                error.retry_after = self._retry_after()
            late = pending.late if isinstance(error, Timeout) else None
            pending.fail(late or error)

    def _is_progress(self, message: M) -> bool:
        """True if a message proves progress of the batch loop. A refusal does not, because other threads send it,
        too."""
        return not isinstance(message, (*self.no_progress, Refused))

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
        requests, self._requests = self._requests, {}
        now = time.monotonic()
        for pending in requests.values():
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
        requests, self._requests = self._requests, {}
        for pending in requests.values():
            pending.fail(Timeout(how))
