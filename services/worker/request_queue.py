"""The requests of a worker, running and waiting: the state of each, and which new request is admitted or refused."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from services.auth.caller import current_caller
from services.errors import AllmError, Overloaded
from services.rpc.deadline import Deadline
from services.telemetry import metrics
from services.worker.messages import Phase

CANCELLED = "CANCELLED"
QUEUE = "queue"  # the phase before the first one that a worker reports
MOST_PHASES = 64  # kept per request: a request that is preempted repeatedly has any number of phases


class Pending:
    """The service's state of a request to a worker."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.caller = current_caller().identity.subject
        self.owed: float | None = self.started  # since when the worker owes progress; None: it waits for us
        self.begun = False  # the worker has sent a message about it
        self.late: AllmError | None = None  # the error when its time is up
        self.finished = False
        self.ended: float | None = None  # when it finished or failed, on the monotonic clock
        self.phases: list[tuple[str, float]] = [(QUEUE, self.started)]  # name and start time
        # When it was ready to run, to measure its time in the queue; None: not measured.
        self.queued_since: float | None = self.started
        self.operation = metrics.operation.get()  # the caller's operation
        self._error: AllmError | None = None
        self._news = asyncio.Event()

    def fail(self, error: AllmError) -> None:
        """Ends the request with an error, which is raised after the events that are already queued."""
        if not self.finished:
            self._error = error
            self.finish()
            self._news.set()

    def finish(self) -> None:
        """Marks the request as finished: no more events follow."""
        self.finished, self.ended = True, time.monotonic()

    def enter(self, phase: Phase) -> None:
        """Records the next phase. Only the first MOST_PHASES are kept."""
        if len(self.phases) < MOST_PHASES:
            self.phases.append((phase.name, phase.at))

    @property
    def waits(self) -> bool:
        """True until the worker reports that it has begun to compute."""
        return not self.finished and len(self.phases) == 1

    @property
    def failed(self) -> bool:
        """True if an error has ended the request."""
        return self._error is not None

    @property
    def problem(self) -> str:
        """The code of the error that ended it; CANCELLED if the caller left before its end; empty on success."""
        if self._error:
            return self._error.code
        return "" if self.finished else CANCELLED

    @property
    def counts(self) -> Mapping[str, float]:
        """The usage so far, for the trace, by OpenTelemetry attribute name."""
        return {}

    def _notify(self) -> None:
        """Wakes the waiting caller: the worker has sent a message about the request."""
        self.begun = True
        self._news.set()

    async def _wait(self) -> None:
        """Waits for the next event. Raises the error that ended the request."""
        self._check()
        await self._news.wait()
        self._news.clear()

    def _check(self) -> None:
        """Raises the error that ended the request, if one did."""
        if self._error:
            raise self._error


KEPT = 64  # most recent completions that the rate is computed from
LEAST = 3  # completions needed for a rate
LONGEST_RETRY_SECONDS = 60.0  # clients such as OpenAI's ignore longer ones
# A request is admitted only if its deadline is this many times the estimated wait: a request that times out shortly
# before its end has cost as much as an answer.
MARGIN = 1.5
P = TypeVar("P", bound=Pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The limits of a worker's requests, and the environment variables that set them."""

    running: int  # requests that run concurrently
    queue: int  # requests that may wait
    queue_variable: str = "ALLM_QUEUE_LIMIT"
    seconds: float  # a request that takes longer ends with TIMEOUT
    seconds_variable: str = "ALLM_REQUEST_SECONDS"
    stall_seconds: float  # a worker that owes an answer and makes no progress for this long is killed


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


class RequestQueue(dict[int, P]):
    """The current requests of a worker by their numbers, oldest first."""

    def __init__(self, model_id: str, limits: RequestLimits) -> None:
        super().__init__()
        self._model_id = model_id
        self._limits = limits
        self._rate = CompletionRate(limits.running)

    def admit(self, caller: str, deadline: Deadline | None) -> int | None:
        """Checks that a new request of `caller` fits. Returns the number of the request that it displaces, if any.

        Raises:
            Overloaded: the queue is full, or too long for the caller's deadline.
        """
        limits, displaced = self._limits, None
        if len(self) >= limits.running + limits.queue and (displaced := self._displace(caller)) is None:
            raise self._busy()
        if deadline is None or len(self) < limits.running:
            return displaced
        wait = self._rate.seconds_for(len(self) + 1)
        if wait is not None and wait * MARGIN > deadline.remaining:
            message = (
                f"{self._model_id} is busy: an answer would take about {wait:.0f} seconds, too long for the request's "
                f"deadline in {max(0.0, deadline.remaining):.0f}"
            )
            raise Overloaded(message, retry_after=self.retry_after())
        return displaced

    def count(self, *, ended: bool = False) -> None:
        """Updates the rate after a request came or went; `ended`: it has completed."""
        self._rate.count(len(self), ended=ended)

    def retry_after(self) -> float:
        """Seconds until half of the current requests have completed, at the current rate. Until there is a rate, they
        are assumed to need as long again as the oldest has taken so far.
        """
        wait = self._rate.seconds_for(max(1, len(self) // 2))
        if wait is None:
            wait = time.monotonic() - min((each.started for each in self.values()), default=0.0)
        return min(wait, LONGEST_RETRY_SECONDS)

    def take_all(self) -> list[P]:
        """Removes and returns all requests."""
        requests = list(self.values())
        self.clear()
        return requests

    def _displace(self, caller: str) -> int | None:
        """Refuses the latest waiting request of the caller that has most requests, so that another caller's fits.

        Returns None if `caller` has about as many itself. So a lone caller may fill the queue, and two share it.
        """
        counts = Counter(each.caller for each in self.values())
        ((most, count),) = counts.most_common(1)
        if count <= counts[caller] + 1:
            return None
        for request, pending in reversed(self.items()):
            if pending.caller == most and pending.waits:
                pending.fail(self._busy())
                del self[request]
                return request
        return None

    def _busy(self) -> Overloaded:
        limits = self._limits
        count = f"{limits.running} requests run and {limits.queue} wait ({limits.queue_variable})"
        return Overloaded(f"{self._model_id} is busy: {count}", retry_after=self.retry_after())
