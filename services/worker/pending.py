"""The service's state of a request to a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from services.auth.caller import current_caller
from services.errors import AllmError
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
