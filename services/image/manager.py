"""The image models of a service: loads diffusers pipelines into worker processes, with the registry's runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.image.engine.messages import EngineOptions, FromWorker, Load, Lora, PipelineReady
from services.image.loaded import LoadedPipeline
from services.models.descriptor import ModelDescriptor
from services.models.registry import Runtime
from services.models.store import StoredModel
from services.residency.manager import ModelManager
from services.residency.registered_models import RegisteredModels, require
from services.settings.modality_settings import ImageSettings
from services.worker.start import WorkerStart, available_cores, worker_environ

WORKER_MODULE = "services.image.engine"
CAPABILITY = "image"


class ImageManager(ModelManager[LoadedPipeline]):
    """Loads the image models of this process, each on the device of its runtime."""

    def __init__(self, settings: ImageSettings) -> None:
        super().__init__(self._start)
        self._settings = settings

    async def _start(self, descriptor: ModelDescriptor, runtime: Runtime) -> LoadedPipeline:
        options = self.options(descriptor, runtime)
        start: WorkerStart[FromWorker, PipelineReady] = WorkerStart(
            module=WORKER_MODULE,
            messages=FromWorker,
            ready=(PipelineReady,),
            model_id=descriptor.id,
            environ=worker_environ(options.threads),
            load=Load(runtime.name, options),
            seconds=self._settings.load_seconds,
        )
        return await start.run(lambda worker, ready: LoadedPipeline(descriptor.id, worker, ready, self._settings))

    def options(self, descriptor: ModelDescriptor, runtime: Runtime) -> EngineOptions:
        """Returns the engine options of a model under a runtime. Its worker and its memory estimate both use them."""
        settings = self._settings
        return EngineOptions(
            model_id=descriptor.id,
            path=str(descriptor.primary),
            base=str(descriptor.base or ""),
            loras=tuple(Lora(path=str(lora.path), scale=lora.scale) for lora in descriptor.loras),
            threads=settings.threads or available_cores(),
            gpu=runtime.gpu,
            device=runtime.device,
            dtype=settings.dtype,
            batch_images=settings.batch_images,
        )


class ImageModels(RegisteredModels[LoadedPipeline]):
    """The registered image models and their loaded pipelines."""

    @asynccontextmanager
    async def loaded(self, stored: StoredModel) -> AsyncIterator[LoadedPipeline]:
        """Leases a model. If it cannot be loaded here but other replicas have it, the error says so.

        Raises:
            Unsupported: the model is not an image model; `param` is `model`.
            ModelInvalid, ModelNotReady, Unsupported, OutOfMemory, Internal, Timeout: it cannot be served here.
        """
        require(stored, CAPABILITY, called="images")
        async with self._leased(stored) as model:
            yield model
