"""Which models are loaded, and who may use them: leases, and loading once however many ask at the same time.

The manager knows neither what a model does nor how its worker talks; each service brings a `load`. Two generations of a
model, or the same under two runtimes, are two residents: so a new one can be loaded before an old one goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

from services.models.descriptor import ModelDescriptor
from services.models.registry import Runtime
from services.rpc import metrics
from services.rpc.errors import AllmError, Internal, ModelNotReady

log = logging.getLogger(__name__)


class Resident(Protocol):
    """A loaded model."""

    @property
    def alive(self) -> bool:
        """Whether it can take requests; a dead one is replaced by the next lease."""

    @property
    def peak_memory(self) -> int:
        """The most memory that it has held, in bytes; 0 where that cannot be known."""

    async def close(self) -> None:
        """Gives up its worker and memory."""


R = TypeVar("R", bound=Resident)
Load = Callable[[ModelDescriptor, Runtime], Awaitable[R]]


class ResidentKey(NamedTuple):
    """What tells residents apart."""

    model_id: str
    generation: int
    runtime: str


def resident_key(descriptor: ModelDescriptor, runtime: Runtime) -> ResidentKey:
    """The key of a model under a runtime."""
    return ResidentKey(descriptor.id, descriptor.generation, runtime.name)


class _Slot(Generic[R]):
    """A resident, or one on its way, and how many use it."""

    def __init__(self, task: asyncio.Task[R]) -> None:
        self.task = task
        self.leases = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def usable(self) -> bool:
        """Loading, or loaded and alive."""
        if not self.task.done():
            return True
        return not self.task.cancelled() and self.task.exception() is None and self.task.result().alive

    @property
    def resident(self) -> R | None:
        """The loaded model, if it takes requests."""
        return self.task.result() if self.task.done() and self.usable else None

    def take(self) -> None:
        self.leases += 1
        self.idle.clear()

    def give_back(self) -> None:
        self.leases -= 1
        if not self.leases:
            self.idle.set()

    async def close(self) -> None:
        """Ends the resident, or its loading."""
        self.task.cancel()  # nothing happens to one that is loaded
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await (await self.task).close()


class ModelManager(Generic[R]):
    """Leases loaded models; loads them on first use."""

    def __init__(self, load: Load[R]) -> None:
        self._load = load
        self._slots: dict[ResidentKey, _Slot[R]] = {}
        self._problems: dict[ResidentKey, AllmError] = {}
        self.on_change: Callable[[], None] = lambda: None  # called after something was loaded, or could not be

    @asynccontextmanager
    async def lease(self, descriptor: ModelDescriptor, runtime: Runtime) -> AsyncIterator[R]:
        """A loaded model for as long as the block runs. Raises what loading raises; then the next lease tries anew."""
        slot = self._slot(descriptor, runtime)
        slot.take()
        try:
            yield await self._loaded(slot, descriptor)
        finally:
            slot.give_back()

    def resident(self, key: ResidentKey) -> R | None:
        """A model that is in memory and takes requests."""
        slot = self._slots.get(key)
        return slot.resident if slot else None

    def problem(self, key: ResidentKey) -> AllmError | None:
        """Why its last attempt to load failed; None after one that succeeded, and before the first."""
        return self._problems.get(key)

    def residents(self) -> Iterator[tuple[str, R]]:
        """Every loaded model that takes requests."""
        for key, slot in self._slots.items():
            if resident := slot.resident:
                yield key.model_id, resident

    async def retire(self, model_id: str, keep: ResidentKey | None = None) -> None:
        """Gives up all residents of a model but `keep`, each once its running leases have ended."""
        keys = [key for key in self._slots if key.model_id == model_id and key != keep]
        slots = [self._slots.pop(key) for key in keys]
        for key in keys:
            self._problems.pop(key, None)
        await asyncio.gather(*(self._retire(slot) for slot in slots))
        if slots:
            log.info("model unloaded", extra={"model": model_id})
            self.on_change()

    async def close(self) -> None:
        """Gives up all models, those that are still loading too."""
        slots, self._slots = list(self._slots.values()), {}
        await asyncio.gather(*(slot.close() for slot in slots))

    async def _retire(self, slot: _Slot[R]) -> None:
        try:
            await slot.idle.wait()
        finally:
            await slot.close()

    async def _loaded(self, slot: _Slot[R], descriptor: ModelDescriptor) -> R:
        try:
            # Shielded: the load goes on for the others when one who waits for it gives up.
            return await asyncio.shield(slot.task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if slot.task.cancelled() and not (task and task.cancelling()):
                raise ModelNotReady(f"{descriptor.id} is being unloaded", retry_after=1) from None
            raise

    def _slot(self, descriptor: ModelDescriptor, runtime: Runtime) -> _Slot[R]:
        """Without a pause: a model that is retired meanwhile would come back by itself."""
        key = resident_key(descriptor, runtime)
        slot = self._slots.get(key)
        if slot is None or not slot.usable:  # not there, or it died, or failed to load
            slot = _Slot(asyncio.create_task(self._timed_load(key, descriptor, runtime, slot)))
            slot.task.add_done_callback(lambda _: self.on_change())
            self._slots[key] = slot
        return slot

    async def _timed_load(
        self, key: ResidentKey, descriptor: ModelDescriptor, runtime: Runtime, before: _Slot[R] | None
    ) -> R:
        if before:
            await before.close()
        started = time.monotonic()
        try:
            resident = await self._load(descriptor, runtime)
        except AllmError as error:
            self._problems[key] = error
            raise
        except Exception as error:  # such as no more processes: it is told as any other reason, and tried anew
            log.exception("unexpected error while loading", extra={"model": descriptor.id})
            self._problems[key] = problem = Internal(f"{descriptor.id} could not be loaded: {error}")
            raise problem from error
        self._problems.pop(key, None)
        seconds = time.monotonic() - started
        metrics.LOAD_SECONDS.labels(descriptor.id).observe(seconds)
        log.info("model loaded", extra={"model": descriptor.id, "runtime": runtime.name, "seconds": round(seconds, 2)})
        return resident
