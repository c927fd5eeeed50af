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
from services.text.engine.messages import Capability, EncoderReady, EngineOptions, Failed, FromWorker, Load, Ready
from services.text.loaded import LoadedTextModel
from services.text.loaded_encoder import LoadedEncoder

WORKER_MODULE = "services.text.engine"


TextResident = LoadedTextModel | LoadedEncoder


class TextManager(ModelManager[TextResident]):
    """The text models of this process. `device` is where they run: cuda, mps or cpu."""

    def __init__(self, settings: TextSettings, device: str) -> None:
        super().__init__(self._start)
        self._settings = settings
        self._device = device

    async def _start(self, descriptor: ModelDescriptor, runtime: Runtime) -> TextResident:
        options = self._options(descriptor)
        environ = worker_environ(options.threads, gpu=options.gpu)
        worker: WorkerProcess[FromWorker] = await WorkerProcess.start(WORKER_MODULE, FromWorker, descriptor.id, environ)
        try:
            capability: Capability = "embeddings" if "embeddings" in descriptor.capabilities else "chat"
            worker.send(Load(runtime.name, options, capability))
            ready = await asyncio.wait_for(self._ready(worker), self._settings.load_seconds)
            if isinstance(ready, EncoderReady):
                return LoadedEncoder(descriptor.id, worker, ready, self._settings)
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

    async def _ready(self, worker: WorkerProcess[FromWorker]) -> Ready | EncoderReady:
        async for message in worker.messages():
            if isinstance(message, Ready | EncoderReady):
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
            dtype=settings.dtype,
            tensor_parallel=settings.tensor_parallel,
        )


def available_cores() -> int:
    """Cores that this process may use (its affinity mask, which containers set)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environ(threads: int, *, gpu: bool = False) -> Mapping[str, str]:
    """What native libraries and transformers are told by their environment.

    Thread pools have as many threads as the engine uses, which wait without burning the cores: GNU's OpenMP spins for
    milliseconds at every barrier. On a quiet machine a thousand turns are as fast (197 against 197 tokens/s on two
    cores); beside one other busy process they were three times faster (71 against 25).

    Without a GPU, transformers must not read tensors ahead of converting them: else expanding 4 bits takes both forms'
    memory at once. The ranks of a divided model talk over the loopback interface only.
    """
    reading: Mapping[str, str] = {} if gpu else {"HF_DEACTIVATE_ASYNC_LOAD": "1"}
    return {
        **reading,
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "1000",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # huge pages: weights are read from end to end for every token
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": str(threads),
    }
