"""TextManager: loads text models into worker processes, each with the runtime that the registry chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from services.errors import Internal
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RuntimeSpec
from services.models.store import StoredModel
from services.residency.manager import ModelManager
from services.residency.registered_models import RegisteredModels, require
from services.settings.modality_settings import TextSettings
from services.text.engine.messages import Capability, DecoderReady, EncoderReady, EngineOptions, FromWorker, Load
from services.text.engine.runtimes.vllm.arguments import eager
from services.text.loaded import LoadedTextModel
from services.text.loaded_encoder import LoadedEncoder
from services.text.memory_estimate import fit_cache
from services.text.runtime_availability import llama_environ
from services.text.template_process import TemplateProcess
from services.worker.process import WorkerProcess, WorkerStart, available_cores, worker_environ

WORKER_MODULE = "services.text.engine"
LLAMA, VLLM = "llama_cpp", "vllm"


TextResident = LoadedTextModel | LoadedEncoder


class TextManager(ModelManager[TextResident]):
    """The text models of this process, each on the device of its runtime."""

    def __init__(self, settings: TextSettings) -> None:
        super().__init__(self._start)
        self._settings = settings

    async def _start(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> TextResident:
        options = self.options(descriptor, runtime)
        capability = _capability(descriptor)

        def adopt(worker: WorkerProcess[FromWorker], ready: DecoderReady | EncoderReady) -> TextResident:
            if isinstance(ready, EncoderReady):
                return LoadedEncoder(descriptor.id, worker, ready, self._settings)
            if template is None:
                raise Internal(f"the worker of {descriptor.id} loaded it for chat, not for {capability}")
            return LoadedTextModel(descriptor.id, descriptor.architecture, worker, ready, self._settings, template)

        start: WorkerStart[FromWorker, DecoderReady | EncoderReady] = WorkerStart(
            module=WORKER_MODULE,
            messages=FromWorker,
            ready=(DecoderReady, EncoderReady),
            model_id=descriptor.id,
            environ=self._environ(runtime, options),
            load=Load(runtime.name, options, capability),
            seconds=self._settings.load_seconds,
            python=self._settings.vllm_python if runtime.name == VLLM else "",
        )
        template = TemplateProcess(descriptor.id, self._settings.queue_limit) if capability == "chat" else None
        if template is not None:
            template.start()  # starts while the worker loads
        try:
            model = await start.run(adopt)
        except BaseException:
            if template is not None:
                await template.close()
            raise
        if isinstance(model, LoadedTextModel):
            await model.open()
        return model

    def options(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> EngineOptions:
        """Returns the engine options of a model under a runtime, for its worker and its memory estimate.

        Options registered with the model take precedence over the settings. The size of the cache, if neither says it,
        is reduced if the model would not fit its GPU (fit_cache).
        """
        settings, own = self._settings, descriptor.engine
        options = EngineOptions(
            model_id=descriptor.id,
            path=str(descriptor.primary),
            projector=str(descriptor.projector or ""),
            threads=settings.threads or available_cores(),
            gpu=runtime.gpu,
            device=runtime.device,
            context_tokens=own.context_tokens or settings.context_tokens,
            kv_tokens=own.kv_tokens or settings.kv_tokens,
            max_sequences=own.max_sequences or settings.max_sequences,
            batch_tokens=settings.batch_tokens,
            chunk_tokens=settings.chunk_tokens,
            prefix_cache=settings.prefix_cache,
            queue_tokens=settings.queue_tokens,
            dtype=own.dtype or settings.dtype,
            speculation=own.speculation or settings.speculation,
            tensor_parallel=own.tensor_parallel or settings.tensor_parallel,
            pipeline_parallel=own.pipeline_parallel or 1,
            compiled=settings.vllm_compile,
            ray_address=settings.ray_address,
        )
        return fit_cache(settings, descriptor, runtime, options)

    def _environ(self, runtime: RuntimeSpec, options: EngineOptions) -> Mapping[str, str]:
        environ = text_environ(options.threads, gpu=options.gpu)
        if runtime.name == LLAMA:
            return {**environ, **llama_environ(runtime.device, self._settings.llama_libraries)}
        if runtime.name != VLLM:
            return environ
        return {**environ, **vllm_environ(options, self._settings.vllm_cache)}


def _capability(descriptor: ModelDescriptor) -> Capability:
    offered: tuple[Capability, ...] = ("embeddings", "rerank")
    return next((one for one in offered if one in descriptor.capabilities), "chat")


def text_environ(threads: int, *, gpu: bool = False) -> Mapping[str, str]:
    """Returns environment variables for native libraries and transformers.

    Without a GPU, transformers must not read tensors ahead of their conversion: otherwise unpacking 4-bit weights needs
    memory for both forms at the same time. The ranks of a parallel model communicate over the loopback interface only.
    """
    reading: Mapping[str, str] = {} if gpu else {"HF_DEACTIVATE_ASYNC_LOAD": "1"}
    return {**worker_environ(threads), **reading, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class TextModels(RegisteredModels[TextResident]):
    """The registered text models, with leases of loaded ones."""

    async def servable_id(self, name: str) -> str:
        """Resolves a model's id. Raises the error of `loaded` if it cannot be served here. Loads nothing."""
        stored = await self.find(name)
        require(stored, "chat")
        self._store.serveable(stored)
        return stored.id

    @asynccontextmanager
    async def loaded(self, stored: StoredModel) -> AsyncIterator[LoadedTextModel]:
        """Leases a generative model. If it cannot be loaded here but other replicas have it, the error says so.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported, OutOfMemory, Internal, Timeout: it cannot be served here.
        """
        require(stored, "chat")
        async with self._leased(stored) as model:
            if not isinstance(model, LoadedTextModel):
                raise TypeError("a model is loaded for what it can do")
            yield model

    @asynccontextmanager
    async def encoder(self, stored: StoredModel) -> AsyncIterator[LoadedEncoder]:
        """Leases an embedding model. Raises as `loaded`."""
        async with self._encoder(stored, "embeddings") as model:
            yield model

    @asynccontextmanager
    async def reranker(self, stored: StoredModel) -> AsyncIterator[LoadedEncoder]:
        """Leases a reranker. Raises as `loaded`."""
        async with self._encoder(stored, "rerank") as model:
            yield model

    @asynccontextmanager
    async def _encoder(self, stored: StoredModel, capability: Capability) -> AsyncIterator[LoadedEncoder]:
        require(stored, capability)
        async with self._leased(stored) as model:
            if not isinstance(model, LoadedEncoder):
                raise TypeError("a model is loaded for what it can do")
            yield model


def vllm_environ(options: EngineOptions, cache: Path) -> Mapping[str, str]:
    """Returns the variables in addition to those of every text worker. `cache`: the folder for compiled code.

    vLLM sends no telemetry, loads no plugins, and logs only errors, which never quote a prompt. The engine runs in the
    worker itself. Its processes use the loopback interface, except in a Ray cluster. Without a GPU they bind no threads
    to cores, because other models compute on the same cores. A step has more and shorter parts than with other
    runtimes; threads that sleep between them cost 7% of the tokens/s (32 sequences, two cores), so they spin for a
    quarter of a millisecond. If the model is not compiled, nothing is, not even the function for logprobs, which vLLM
    would otherwise compile when a request first asks for them.
    """
    environ = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_PLUGINS": "",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "PYTHONWARNINGS": "ignore",  # of libraries about each other
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "GOMP_SPINCOUNT": "10000",
    }
    if eager(options):
        environ["TORCH_COMPILE_DISABLE"] = "1"
    if options.ray_address:
        # The ranks on other machines inherit this environment and must choose their own interfaces.
        return {**environ, "RAY_ADDRESS": options.ray_address, "NCCL_SOCKET_IFNAME": "", "GLOO_SOCKET_IFNAME": ""}
    return {**environ, "VLLM_HOST_IP": "127.0.0.1"}
