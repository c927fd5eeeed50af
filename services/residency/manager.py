"""Which models are loaded, and who may use them: leases, loading once however many ask, and giving memory back.

The manager knows neither what a model does nor how its worker talks; each service brings a `load`. Two generations of a
model, or the same under two runtimes, are two residents: so a new one can be loaded before an old one goes. Whether
there is room for one more is for a gate to say; nothing here waits for it but the load itself, and no lock is held
meanwhile: what one load waits for, another may evict.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

from services.cancellation import is_cancelled
from services.errors import AllmError, Internal, ModelNotReady
from services.models.descriptor import ModelDescriptor
from services.models.registry import Runtime
from services.models.status import MemoryStatus
from services.residency.backoff import Backoff
from services.residency.memory.refusal import NeverFits
from services.residency.resident import Resident, ResidentKey, resident_key
from services.residency.slot import Slot
from services.settings.settings import MIB
from services.telemetry import metrics, tracing
from services.telemetry.model_events import EVENTS
from services.worker.process import started_pids

log = logging.getLogger(__name__)

LOAD_CODES = ("MODEL_INVALID", "OUT_OF_MEMORY", "TIMEOUT", "INTERNAL")  # what loads usually fail with
R = TypeVar("R", bound=Resident)
Load = Callable[[ModelDescriptor, Runtime], Awaitable[R]]


class Gate(Protocol):
    """Lets models into memory."""

    async def enter(self, slot: Slot[Any]) -> None:
        """Sets memory aside for a model, in `slot.reservation`. Raises OutOfMemory or ModelNotReady."""

    async def leave(self, slot: Slot[Any]) -> None:
        """Gives it back, if there is any. Never raises."""


class ModelManager(Generic[R]):
    """Leases loaded models; loads them on first use.

    `clock`: seconds since the epoch, for what was used last; `monotonic`: seconds that only grow, for the back-off.
    """

    def __init__(
        self,
        load: Load[R],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._clock = clock
        self._slots: dict[ResidentKey, Slot[R]] = {}
        self._leaving: set[Slot[R]] = set()  # nobody new gets them; they end, or wait for their last lease
        self._died: set[ResidentKey] = set()  # what is loaded of these next comes in place of a worker that died
        self._backoff = Backoff(monotonic)
        self._refused: dict[ResidentKey, AllmError] = {}
        self._pinned: set[str] = set()
        self.gate: Gate | None = None  # None: whatever is asked for is loaded
        self.on_change: Callable[[], None] = lambda: None  # called after something was loaded, or could not be

    @asynccontextmanager
    async def lease(self, descriptor: ModelDescriptor, runtime: Runtime) -> AsyncIterator[R]:
        """A loaded model for as long as the block runs.

        Raises what loading raises; then the next lease tries anew, or, after several failures in a row, is told the
        same at once for a while.
        """
        slot = self._slot(descriptor, runtime)
        slot.take()
        try:
            with slot.awaited():
                resident = await self._loaded(slot, descriptor)
            yield resident
            if resident.alive:
                self._backoff.served(slot.key)
        finally:
            slot.give_back()

    async def load(self, descriptor: ModelDescriptor, runtime: Runtime) -> None:
        """Brings a model into memory, if it is not there. Raises as `lease` does."""
        slot = self._slot(descriptor, runtime)
        slot.take()
        try:
            await self._loaded(slot, descriptor)
        finally:
            slot.give_back()

    # --- what others see

    def resident(self, key: ResidentKey) -> R | None:
        """A model that is in memory and takes requests."""
        slot = self._slots.get(key)
        return slot.resident if slot else None

    def slot(self, key: ResidentKey) -> Slot[R] | None:
        """The place of a model that is in memory, or on its way there."""
        return self._slots.get(key)

    def slots(self) -> list[Slot[R]]:
        """Everything that holds memory or is about to, also what is on its way out."""
        return [*self._slots.values(), *self._leaving]

    def memory(self, key: ResidentKey) -> MemoryStatus | None:
        """What a model takes, for its status; None where it is neither loaded nor on its way."""
        slot = self._slots.get(key)
        if slot is None or not slot.usable:
            return None
        return MemoryStatus(
            loading=slot.loading,
            pinned=self.pinned(key.model_id),
            reserved=sum(slot.reservation.places.values()) if slot.reservation else 0,
            host=slot.memory // MIB * MIB,  # not every page is news
            requests=slot.leases,
            last_used=int(slot.last_used),
        )

    def problem(self, key: ResidentKey) -> AllmError | None:
        """Why its last attempt to load failed, or its worker keeps dying; None after one that succeeded."""
        refused = self._refused.get(key)
        return self._backoff.problem(key) or (refused if isinstance(refused, NeverFits) else None)

    def refusal(self, key: ResidentKey) -> AllmError | None:
        """Why there was no room for it when it was last asked for; None after there was."""
        return self._refused.get(key)

    def residents(self) -> Iterator[tuple[str, R]]:
        """Every loaded model that takes requests."""
        for key, slot in self._slots.items():
            if resident := slot.resident:
                yield key.model_id, resident

    # --- what may stay

    def pin(self, model_id: str, *, wanted: bool) -> None:
        """Whether a model is to stay in memory whatever others need."""
        if wanted:
            self._pinned.add(model_id)
        else:
            self._pinned.discard(model_id)

    def forgive(self, model_id: str) -> None:
        """Lets the next request try a model anew that has failed too often lately."""
        for key in [key for key in self._backoff if key.model_id == model_id]:
            self._backoff.forget(key)

    def pinned(self, model_id: str) -> bool:
        """Whether a model is to stay in memory."""
        return model_id in self._pinned

    def evictable(self, key: ResidentKey) -> bool:
        """Whether a model is loaded, nobody uses it, and nobody wants it to stay."""
        slot = self._slots.get(key)
        return slot is not None and slot.resident is not None and not slot.busy and not self.pinned(key.model_id)

    async def evict(self, key: ResidentKey, reason: str) -> int | None:
        """Unloads a model that nobody uses, and returns how many bytes that has freed, once they are free.

        None: nothing was done, because it is not here, still loading, in use, or pinned. `reason`: one word.
        """
        if not self.evictable(key):
            return None
        slot = self._slots.pop(key)
        reserved = sum(slot.reservation.places.values()) if slot.reservation else 0
        metrics.EVICTIONS.labels(key.model_id, reason).inc()
        EVENTS.tell("evicted", key.model_id, reason)
        log.info("model evicted", extra={"model": key.model_id, "reason": reason, "reserved": reserved})
        await self._end(slot)
        self.on_change()
        return reserved

    def sweep(self) -> None:
        """Gives up what has died, so that its memory counts as free again before the model is asked for."""
        for key in [key for key, slot in self._slots.items() if slot.died and not slot.leases]:
            self._bury(self._slots.pop(key))

    async def retire(self, model_id: str, keep: ResidentKey | None = None) -> None:
        """Gives up all residents of a model but `keep`, each once its running leases have ended."""
        keys = [key for key in self._slots if key.model_id == model_id and key != keep]
        slots = [self._slots.pop(key) for key in keys]
        if any(slot.resident for slot in slots):
            EVENTS.tell("unloaded", model_id)
        self._leaving.update(slots)
        for key in {*self._backoff, *self._refused}:
            if key.model_id == model_id and key != keep:
                self._backoff.forget(key)
                self._refused.pop(key, None)
        self._died -= {key for key in self._died if key.model_id == model_id and key != keep}
        await asyncio.gather(*(self._retire(slot) for slot in slots))
        if slots:
            log.info("model unloaded", extra={"model": model_id})
            self.on_change()

    async def close(self) -> None:
        """Gives up all models, those that are still loading too."""
        slots, self._slots = self.slots(), {}
        await asyncio.gather(*(self._end(slot) for slot in slots))

    # --- on the way in and out

    def _slot(self, descriptor: ModelDescriptor, runtime: Runtime) -> Slot[R]:
        """Without a pause: a model that is retired meanwhile would come back by itself.

        Raises the problem of a model that has failed too often lately.
        """
        key = resident_key(descriptor, runtime)
        slot = self._slots.get(key)
        if slot is not None and slot.usable:
            return slot
        if slot is not None:  # it died, or failed to load
            del self._slots[key]
            self._bury(slot)
        self._backoff.check(key)
        slot = Slot(descriptor, runtime, self._clock)
        before = [one for one in self._leaving if one.key == key and not one.leases]
        slot.span = tracing.open_span("load", {"gen_ai.request.model": key.model_id, "allm.runtime": key.runtime})
        slot.task = asyncio.create_task(self._timed_load(slot, before))
        slot.task.add_done_callback(slot.tell_load)
        slot.task.add_done_callback(lambda _: self.on_change())
        self._slots[key] = slot
        return slot

    async def _timed_load(self, slot: Slot[R], before: Iterable[Slot[R]]) -> R:
        for one in before:
            await self._end(one)
        key, started = slot.key, time.monotonic()
        for code in LOAD_CODES:
            metrics.LOAD_FAILURES.labels(key.model_id, code)  # at 0: Prometheus sees no increase to a first 1
        await self._enter(slot)
        started_pids.set(slot.started)
        try:
            resident = await self._load(slot.descriptor, slot.runtime)
        except BaseException as error:
            await self._leave(slot)
            if isinstance(error, AllmError):
                self._load_failed(key, error)
                raise
            if not isinstance(error, Exception):
                raise
            # Such as no more processes: it is told as any other reason, and tried anew.
            log.exception("unexpected error while loading", extra={"model": key.model_id})
            problem = Internal(f"{key.model_id} could not be loaded: {error}")
            self._load_failed(key, problem)
            raise problem from error
        self._backoff.loaded(key)
        seconds = time.monotonic() - started
        metrics.LOAD_SECONDS.labels(key.model_id).observe(seconds)
        EVENTS.tell("loaded", key.model_id)
        if key in self._died:
            self._died.discard(key)
            metrics.WORKER_RESTARTS.labels(key.model_id).inc()
        log.info("model loaded", extra={"model": key.model_id, "runtime": key.runtime, "seconds": round(seconds, 2)})
        return resident

    def _load_failed(self, key: ResidentKey, error: AllmError) -> None:
        metrics.LOAD_FAILURES.labels(key.model_id, error.code).inc()
        EVENTS.tell("load_failed", key.model_id, error.code)
        self._backoff.load_failed(key, error)

    async def _enter(self, slot: Slot[R]) -> None:
        try:
            if self.gate:
                await self.gate.enter(slot)
        except AllmError as refusal:
            log.warning("model not let into memory", extra={"model": slot.key.model_id, "reason": refusal.message})
            self._refused[slot.key] = refusal
            raise
        self._refused.pop(slot.key, None)

    async def _leave(self, slot: Slot[R]) -> None:
        if self.gate:
            await self.gate.leave(slot)

    async def _loaded(self, slot: Slot[R], descriptor: ModelDescriptor) -> R:
        try:
            # Shielded: the load goes on for the others when one who waits for it gives up.
            if not slot.loading:
                return await asyncio.shield(slot.task)
            with tracing.part("wait for load", slot.span):
                return await asyncio.shield(slot.task)
        except asyncio.CancelledError:
            if slot.task.cancelled() and not is_cancelled():
                raise ModelNotReady(f"{descriptor.id} is being unloaded", retry_after=1) from None
            raise

    def _bury(self, slot: Slot[R]) -> None:
        """Ends what takes no requests any more, beside whatever else goes on."""
        if slot.died:
            self._died.add(slot.key)
            problem = slot.task.result().problem
            self._backoff.died(slot.key, problem.message if problem else "its worker ended")
            self._leaving.add(slot)
            slot.end(self._leave).add_done_callback(lambda _: self._leaving.discard(slot))

    async def _retire(self, slot: Slot[R]) -> None:
        try:
            await slot.idle.wait()
        finally:
            await self._end(slot)

    async def _end(self, slot: Slot[R]) -> None:
        """Ends a slot, and counts it as long as that takes. Goes on to its end also when the caller is cancelled."""
        self._leaving.add(slot)
        ending = slot.end(self._leave)
        ending.add_done_callback(lambda _: self._leaving.discard(slot))
        await asyncio.shield(ending)
