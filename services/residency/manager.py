"""The loaded models of a service: leases, one shared load per model, and eviction.

The manager knows neither what a model does nor its worker's protocol: each service passes a `load`. Two generations of
a model, or the same model under two runtimes, are two residents, so that a new one can load before the old one goes.
The gate decides whether memory suffices. Only the load itself waits for the gate, and no lock is held meanwhile: a load
may wait for memory that another call evicts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

from services.errors import AllmError, Internal, ModelNotReady
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RuntimeSpec
from services.models.status import MemoryStatus
from services.residency.backoff import Backoff
from services.residency.memory.reservation import NeverFits, ResidentKey, resident_key
from services.residency.slot import Resident, Slot
from services.rpc.deadline import is_cancelled
from services.settings.modality_settings import MIB
from services.telemetry import metrics, tracing
from services.telemetry.figures import EVENTS
from services.worker.process import started_pids

log = logging.getLogger(__name__)

LOAD_CODES = ("MODEL_INVALID", "OUT_OF_MEMORY", "TIMEOUT", "INTERNAL")  # the usual error codes of failed loads
R = TypeVar("R", bound=Resident)
Load = Callable[[ModelDescriptor, RuntimeSpec], Awaitable[R]]


class Gate(Protocol):
    """The admission of models to memory."""

    async def enter(self, slot: Slot[Any]) -> None:
        """Reserves memory for a model, in `slot.reservation`. Raises OutOfMemory or ModelNotReady."""

    async def leave(self, slot: Slot[Any]) -> None:
        """Releases the reservation, if any. Never raises."""


class ModelManager(Generic[R]):
    """The manager of loaded models: leases them, and loads them on first use.

    `clock`: seconds since the epoch, for `last_used`; `monotonic`: monotonic seconds, for idle times and the back-off.
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
        self._leaving: set[Slot[R]] = set()  # they take no new leases; they are ending, or wait for their last lease
        self._died: set[ResidentKey] = set()  # their next successful load counts as a worker restart
        self._monotonic = monotonic
        self._backoff = Backoff(monotonic)
        self._refused: dict[ResidentKey, AllmError] = {}
        self._pinned: set[str] = set()
        self.idle_seconds = 0.0  # after which the monitor unloads an idle model; 0: never
        self.gate: Gate | None = None  # None: every load is admitted
        self.on_change: Callable[[], None] = lambda: None  # called after every load and unload

    @asynccontextmanager
    async def lease(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> AsyncIterator[R]:
        """Holds a lease on a loaded model while the block runs.

        Raises the load's error. The next lease retries the load or, after several failures in a row, raises the same
        error immediately until the back-off ends.
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

    async def load(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> None:
        """Loads a model into memory unless it is loaded. Raises as `lease` does."""
        slot = self._slot(descriptor, runtime)
        slot.take()
        try:
            await self._loaded(slot, descriptor)
        finally:
            slot.give_back()

    # --- views

    def resident(self, key: ResidentKey) -> R | None:
        """Returns a model that is in memory and takes requests."""
        slot = self._slots.get(key)
        return slot.resident if slot else None

    def slot(self, key: ResidentKey) -> Slot[R] | None:
        """Returns the slot of a model that is loaded or loading."""
        return self._slots.get(key)

    def slots(self) -> list[Slot[R]]:
        """Returns every slot that holds memory or is about to, including those that are being unloaded."""
        return [*self._slots.values(), *self._leaving]

    def memory(self, key: ResidentKey) -> MemoryStatus | None:
        """Returns a model's memory use for its status; None if it is neither loaded nor loading."""
        slot = self._slots.get(key)
        if slot is None or not slot.usable:
            return None
        return MemoryStatus(
            loading=slot.loading,
            pinned=self.pinned(key.model_id),
            reserved=sum(slot.reservation.devices.values()) if slot.reservation else 0,
            host=slot.memory // MIB * MIB,  # rounded: not every page is worth a report
            requests=slot.leases,
            last_used=int(slot.last_used),
            expires=self._expires(slot),
        )

    def _expires(self, slot: Slot[R]) -> int:
        """Returns when an idle model is unloaded, in seconds since the epoch; 0: not before memory is needed."""
        limit = slot.idle_limit(self.idle_seconds)
        return int(slot.last_used + limit) if limit or slot.keep_alive == 0 else 0

    def problem(self, key: ResidentKey) -> AllmError | None:
        """Returns why the last load failed or the worker keeps dying; None after a success."""
        refused = self._refused.get(key)
        return self._backoff.problem(key) or (refused if isinstance(refused, NeverFits) else None)

    def refusal(self, key: ResidentKey) -> AllmError | None:
        """Returns why the last admission was refused; None after one that succeeded."""
        return self._refused.get(key)

    def residents(self) -> Iterator[tuple[str, R]]:
        """Iterates over the loaded models that take requests."""
        for key, slot in self._slots.items():
            if resident := slot.resident:
                yield key.model_id, resident

    # --- pinning and eviction

    def pin(self, model_id: str, *, wanted: bool) -> None:
        """Pins a model in memory, whatever other models need, or unpins it."""
        if wanted:
            self._pinned.add(model_id)
        else:
            self._pinned.discard(model_id)

    def keep(self, key: ResidentKey, seconds: float) -> None:
        """Records a request's wish that a model stays idle for so long before it is unloaded, if it is loaded.

        0: it is the first to be evicted, until the next request. Infinite: only a need of memory ends its stay.
        """
        if slot := self._slots.get(key):
            slot.keep_alive = seconds

    def forgive(self, model_id: str) -> None:
        """Ends the model's back-off, so that the next request retries the load."""
        for key in [key for key in self._backoff if key.model_id == model_id]:
            self._backoff.forget(key)

    def pinned(self, model_id: str) -> bool:
        """Returns whether a model is pinned in memory."""
        return model_id in self._pinned

    def evictable(self, key: ResidentKey) -> bool:
        """Returns whether a model is loaded, idle and not pinned."""
        slot = self._slots.get(key)
        return slot is not None and slot.resident is not None and not slot.busy and not self.pinned(key.model_id)

    async def evict(self, key: ResidentKey, reason: str) -> int | None:
        """Unloads an idle model; returns the number of freed bytes once they are free.

        Returns None if nothing was done: the model is absent, still loading, in use, or pinned. `reason`: one word.
        """
        if not self.evictable(key):
            return None
        slot = self._slots.pop(key)
        reserved = sum(slot.reservation.devices.values()) if slot.reservation else 0
        metrics.EVICTIONS.labels(key.model_id, reason).inc()
        EVENTS.record("evicted", key.model_id, reason)
        log.info("model evicted", extra={"model": key.model_id, "reason": reason, "reserved": reserved})
        await self._end(slot)
        self.on_change()
        return reserved

    def sweep(self) -> None:
        """Removes dead residents, so that their memory counts as free before the next request for the model."""
        for key in [key for key, slot in self._slots.items() if slot.died and not slot.leases]:
            self._bury(self._slots.pop(key))

    async def retire(self, model_id: str, keep: ResidentKey | None = None) -> None:
        """Unloads all residents of a model but `keep`, each once its running leases have ended."""
        keys = [key for key in self._slots if key.model_id == model_id and key != keep]
        slots = [self._slots.pop(key) for key in keys]
        if any(slot.resident for slot in slots):
            EVENTS.record("unloaded", model_id)
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
        """Unloads all models, including those that are still loading."""
        slots, self._slots = self.slots(), {}
        await asyncio.gather(*(self._end(slot) for slot in slots))

    # --- loading and unloading

    def _slot(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> Slot[R]:
        """Returns the model's slot; starts its load if necessary. Does not await: else a retired model could reappear.

        Raises the problem of a model that is in back-off.
        """
        key = resident_key(descriptor, runtime)
        slot = self._slots.get(key)
        if slot is not None and slot.usable:
            return slot
        if slot is not None:  # it died, or failed to load
            del self._slots[key]
            self._bury(slot)
        self._backoff.check(key)
        slot = Slot(descriptor, runtime, self._clock, self._monotonic)
        before = [one for one in self._leaving if one.key == key and not one.leases]
        slot.span = tracing.open_span("load", {"gen_ai.request.model": key.model_id, "allm.runtime": key.runtime})
        slot.task = asyncio.create_task(self._timed_load(slot, before))
        slot.task.add_done_callback(slot.end_span)
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
            # For example, no more processes. Reported as any other failure, and retried.
            log.exception("unexpected error while loading", extra={"model": key.model_id})
            problem = Internal(f"{key.model_id} could not be loaded: {error}")
            self._load_failed(key, problem)
            raise problem from error
        self._backoff.loaded(key)
        seconds = time.monotonic() - started
        metrics.LOAD_SECONDS.labels(key.model_id).observe(seconds)
        EVENTS.record("loaded", key.model_id)
        if key in self._died:
            self._died.discard(key)
            metrics.WORKER_RESTARTS.labels(key.model_id).inc()
        log.info("model loaded", extra={"model": key.model_id, "runtime": key.runtime, "seconds": round(seconds, 2)})
        return resident

    def _load_failed(self, key: ResidentKey, error: AllmError) -> None:
        metrics.LOAD_FAILURES.labels(key.model_id, error.code).inc()
        EVENTS.record("load_failed", key.model_id, error.code)
        self._backoff.load_failed(key, error)

    async def _enter(self, slot: Slot[R]) -> None:
        try:
            if self.gate:
                await self.gate.enter(slot)
        except AllmError as refusal:
            log.warning("model not admitted to memory", extra={"model": slot.key.model_id, "reason": refusal.message})
            self._refused[slot.key] = refusal
            raise
        self._refused.pop(slot.key, None)

    async def _leave(self, slot: Slot[R]) -> None:
        if self.gate:
            await self.gate.leave(slot)

    async def _loaded(self, slot: Slot[R], descriptor: ModelDescriptor) -> R:
        try:
            # Shielded: when one waiter gives up, the load continues for the others.
            if not slot.loading:
                return await asyncio.shield(slot.task)
            with tracing.part("wait for load", slot.span):
                return await asyncio.shield(slot.task)
        except asyncio.CancelledError:
            if slot.task.cancelled() and not is_cancelled():
                raise ModelNotReady(f"{descriptor.id} is being unloaded", retry_after=1) from None
            raise

    def _bury(self, slot: Slot[R]) -> None:
        """Stops a dead worker in the background; does nothing after a failed load."""
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
        """Ends a slot and counts it until that is done. Continues to the end even if the caller is cancelled."""
        self._leaving.add(slot)
        ending = slot.end(self._leave)
        ending.add_done_callback(lambda _: self._leaving.discard(slot))
        await asyncio.shield(ending)
