"""A slot of the manager: a model that is loaded or loading, its interface, and its leases."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from services.errors import AllmError
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RuntimeSpec
from services.residency.memory.reservation import Reservation, ResidentKey, resident_key
from services.telemetry import metrics
from services.telemetry.metrics import ModelPart

if TYPE_CHECKING:  # OpenTelemetry is an extra of its own
    from services.telemetry.otlp import Span


class Resident(Protocol):
    """A loaded model."""

    @property
    def alive(self) -> bool:
        """True if it takes requests; the next lease replaces a dead one."""

    @property
    def problem(self) -> AllmError | None:
        """Why it takes no more requests; None while it does, and if the cause is unknown."""

    @property
    def pid(self) -> int:
        """Process id of its worker; 0 if it has no separate process."""

    @property
    def peak_memory(self) -> int:
        """The peak of its memory, in bytes; 0 if unknown."""

    async def close(self) -> None:
        """Stops its worker and frees its memory."""


R = TypeVar("R", bound=Resident)


class Slot(Generic[R]):
    """A resident that is loaded or loading, and the number of its leases."""

    task: asyncio.Task[R]  # the load; set by its starter

    def __init__(
        self,
        descriptor: ModelDescriptor,
        runtime: RuntimeSpec,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds since the epoch, which callers see and the services of a host compare; it may be set.

        `monotonic`: monotonic seconds.
        """
        self.descriptor = descriptor
        self.runtime = runtime
        self.key: ResidentKey = resident_key(descriptor, runtime)
        self.reservation: Reservation | None = None  # made by admission
        self.started: list[int] = []  # process ids of the workers that the load has started
        self.memory = 0  # host bytes of its worker at the last reading; 0: not read yet
        self.leases = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._clock = clock
        self._monotonic = monotonic
        # Seconds that the last request with a wish wants the model to stay idle; 0: nobody needs it; None: no wish.
        self.keep_alive: float | None = None
        self._use()
        self._awaiting = 0  # requests that wait for the load
        self._part: ModelPart | None = None  # its metrics
        self.span: Span | None = None  # of the load
        self._ending: asyncio.Task[None] | None = None

    @property
    def loading(self) -> bool:
        """True if it is loading, or waits for memory."""
        return not self.task.done()

    @property
    def usable(self) -> bool:
        """True if it is loading, or loaded and alive."""
        if not self.task.done():
            return True
        return not self.task.cancelled() and self.task.exception() is None and self.task.result().alive

    @property
    def resident(self) -> R | None:
        """The loaded model, if it takes requests."""
        return self.task.result() if self.task.done() and self.usable else None

    @property
    def pids(self) -> list[int]:
        """Process ids of its worker; during the load, of all processes that the load has started."""
        if self.loading:
            return self.started
        resident = self.resident
        return [resident.pid] if resident else []

    @property
    def died(self) -> bool:
        """True if its worker has ended after a successful load."""
        return self.task.done() and not self.task.cancelled() and not self.task.exception() and not self.usable

    @property
    def busy(self) -> bool:
        """True if it is leased or loading."""
        return self.leases > 0 or self.loading

    def end_span(self, task: asyncio.Task[R]) -> None:
        """Ends the load's span."""
        if self.span is None:
            return
        error = None if task.cancelled() else task.exception()
        problem = "CANCELLED" if task.cancelled() else getattr(error, "code", "INTERNAL") if error else ""
        self.span.end(time.monotonic(), problem, fault=error is not None)

    def take(self) -> None:
        """Adds a lease. Somebody needs the model, so an earlier wish that it goes does not count any more."""
        self.leases += 1
        if self.keep_alive == 0:
            self.keep_alive = None
        self._use()
        self.idle.clear()

    def give_back(self) -> None:
        """Ends a lease."""
        self.leases -= 1
        self._use()
        if not self.leases:
            self.idle.set()

    @property
    def idle_seconds(self) -> float:
        """Seconds since its last use."""
        return self._monotonic() - self._used

    @property
    def order(self) -> float:
        """Its place among idle models: the one with the lowest number is evicted first."""
        return 0.0 if self.keep_alive == 0 else self.last_used

    def idle_limit(self, usual: float) -> float:
        """Returns the seconds after which it is unloaded if it stays idle; 0: never. `usual`: likewise, without a wish.

        A wish can only lengthen the usual time.
        """
        limit = max(usual, self.keep_alive or 0.0) if usual else 0.0
        return 0.0 if math.isinf(limit) else limit

    def _use(self) -> None:
        self.last_used, self._used = self._clock(), self._monotonic()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Counts a request that waits for the load, until the block ends."""
        if not self.loading:
            yield
            return
        part = self._part = self._part or ModelPart(self.key.model_id)
        self._awaiting += 1
        part.set(metrics.WAITING, self._awaiting)
        try:
            yield
        finally:
            self._awaiting -= 1
            part.set(metrics.WAITING, self._awaiting)
            if not self._awaiting:
                part.close()
                self._part = None

    def end(self, leave: Callable[[Slot[R]], Awaitable[None]]) -> asyncio.Task[None]:
        """Ends the resident or its load, then calls `leave`; only once, however often it is called. Callers shield it:
        a half-ended resident would still hold memory that nobody counts.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(leave))
        return self._ending

    async def _end(self, leave: Callable[[Slot[R]], Awaitable[None]]) -> None:
        self.task.cancel()  # no effect on a finished load
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await (await self.task).close()
        await leave(self)
