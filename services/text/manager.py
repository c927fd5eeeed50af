"""TextManager: loads text models into worker processes, each with the runtime that the registry names."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from services.models.descriptor import ModelDescriptor
from services.models.registry import Runtime
from services.residency.manager import ModelManager
from services.residency.worker import WorkerDied, WorkerProcess
from services.rpc.errors import Internal, Timeout, from_code
from services.rpc.settings import TextSettings
from services.text.engine.messages import EngineOptions, Failed, FromWorker, Load, Ready
from services.text.loaded import LoadedTextModel

WORKER_MODULE = "services.text.engine"


class TextManager(ModelManager[LoadedTextModel]):
    """The text models of this process. `device` is where they run: cuda, mps or cpu."""

    def __init__(self, settings: TextSettings, device: str) -> None:
        super().__init__(self._start)
        self._settings = settings
        self._device = device

    async def _start(self, descriptor: ModelDescriptor, runtime: Runtime) -> LoadedTextModel:
        options = self._options(descriptor)
        environ = worker_environ(options.threads)
        worker: WorkerProcess[FromWorker] = await WorkerProcess.start(WORKER_MODULE, FromWorker, descriptor.id, environ)
        try:
            worker.send(Load(runtime.name, options))
            ready = await asyncio.wait_for(self._ready(worker), self._settings.load_seconds)
            return LoadedTextModel(descriptor.id, descriptor.architecture, worker, ready, self._settings)
        except TimeoutError:
            await worker.close()
            limit = self._settings.load_seconds
            raise Timeout(f"{descriptor.id} was not loaded within {limit:g} seconds (ALLM_LOAD_SECONDS)") from None
        except WorkerDied as death:
            await worker.close()
            raise Internal(f"{descriptor.id} could not be loaded: {death}") from death
        except BaseException:
            await worker.close()
            raise

    async def _ready(self, worker: WorkerProcess[FromWorker]) -> Ready:
        async for message in worker.messages():
            if isinstance(message, Ready):
                return message
            if isinstance(message, Failed):
                raise from_code(message.code, message.message)
        raise AssertionError("a worker's messages end with an error")

    def _options(self, descriptor: ModelDescriptor) -> EngineOptions:
        settings = self._settings
        return EngineOptions(
            model_id=descriptor.id,
            path=str(descriptor.primary),
            threads=settings.threads or available_cores(),
            gpu=self._device != "cpu",
            context_tokens=settings.context_tokens,
            kv_tokens=settings.kv_tokens,
            max_sequences=settings.max_sequences,
            batch_tokens=settings.batch_tokens,
            chunk_tokens=settings.chunk_tokens,
            prefix_cache=settings.prefix_cache,
        )


def available_cores() -> int:
    """Cores that this process may use (its affinity mask, which containers set)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environ(threads: int) -> Mapping[str, str]:
    """Thread pools of native libraries: as many threads as the engine uses, which wait without burning the cores.

    GNU's OpenMP spins for milliseconds at every barrier. On a quiet machine a thousand turns are as fast (197 against
    197 tokens/s on two cores); beside one other busy process they were three times faster (71 against 25).
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "1000",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # huge pages: weights are read from end to end for every token
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": str(threads),
    }
