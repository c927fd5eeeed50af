"""Which models are loaded, and who may use them: leases, and loading once however many ask at the same time.

The manager knows neither what a model does nor how its worker talks; each service brings a `load`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from services.models.descriptor import ModelDescriptor
from services.models.registry import Runtime
from services.rpc import metrics

log = logging.getLogger(__name__)


class Resident(Protocol):
    """A loaded model."""

    @property
    def alive(self) -> bool:
        """Whether it can take requests; a dead one is replaced by the next lease."""

    async def close(self) -> None:
        """Gives up its worker and memory."""


R = TypeVar("R", bound=Resident)
Load = Callable[[ModelDescriptor, Runtime], Awaitable[R]]


class ModelManager(Generic[R]):
    """Leases loaded models; loads them on first use."""

    def __init__(self, load: Load[R]) -> None:
        self._load = load
        self._resident: dict[str, asyncio.Task[R]] = {}
        self._leases: dict[str, int] = {}

    @asynccontextmanager
    async def lease(self, descriptor: ModelDescriptor, runtime: Runtime) -> AsyncIterator[R]:
        """A loaded model for as long as the block runs. Raises what loading raises; then the next lease tries anew."""
        model_id = descriptor.id
        self._leases[model_id] = self._leases.get(model_id, 0) + 1
        try:
            yield await self._loaded(descriptor, runtime)
        finally:
            self._leases[model_id] -= 1

    def loaded(self, model_id: str) -> bool:
        """Whether a model is in memory and takes requests."""
        task = self._resident.get(model_id)
        return task is not None and _usable(task) and task.done()

    def residents(self) -> Iterator[tuple[str, R]]:
        """Every loaded model that takes requests."""
        for model_id, task in self._resident.items():
            if task.done() and _usable(task):
                yield model_id, task.result()

    async def close(self) -> None:
        """Gives up all models, those that are still loading too."""
        tasks, self._resident = list(self._resident.values()), {}
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await (await task).close()

    async def _loaded(self, descriptor: ModelDescriptor, runtime: Runtime) -> R:
        task = self._resident.get(descriptor.id)
        if task is None or not _usable(task):
            if task is not None:
                await self._bury(descriptor.id, task)
            task = self._resident.get(descriptor.id)  # another caller may have been quicker
            if task is None:
                task = asyncio.create_task(self._timed_load(descriptor, runtime))
                self._resident[descriptor.id] = task
        # Shielded: the load goes on for the others when one who waits for it gives up.
        return await asyncio.shield(task)

    async def _timed_load(self, descriptor: ModelDescriptor, runtime: Runtime) -> R:
        started = time.monotonic()
        resident = await self._load(descriptor, runtime)
        seconds = time.monotonic() - started
        metrics.LOAD_SECONDS.labels(descriptor.id).observe(seconds)
        log.info("model loaded", extra={"model": descriptor.id, "runtime": runtime.name, "seconds": round(seconds, 2)})
        return resident

    async def _bury(self, model_id: str, task: asyncio.Task[R]) -> None:
        """Forgets a model that died or failed to load."""
        if self._resident.get(model_id) is task:
            del self._resident[model_id]
            if not task.cancelled() and task.exception() is None:
                await task.result().close()


def _usable(task: asyncio.Task[R]) -> bool:
    """Loading, or loaded and alive."""
    if not task.done():
        return True
    return not task.cancelled() and task.exception() is None and task.result().alive
