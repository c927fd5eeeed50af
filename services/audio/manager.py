"""AudioManager: loads Whisper models into worker processes, each with the runtime that the registry chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.audio.engine.messages import EngineOptions, FromWorker, Load, Task, WhisperReady
from services.audio.loaded import LoadedWhisper
from services.models.descriptor import ModelDescriptor
from services.models.registry import Runtime
from services.models.store import StoredModel
from services.residency.manager import ModelManager
from services.residency.registered_models import RegisteredModels, require
from services.settings.modality_settings import AudioSettings
from services.worker.devices import cublas_environ
from services.worker.start import WorkerStart, available_cores, worker_environ

WORKER_MODULE = "services.audio.engine"
CTRANSLATE2 = "faster_whisper"  # the runtime
CAPABILITIES: dict[Task, str] = {"transcribe": "transcription", "translate": "translation"}


class AudioManager(ModelManager[LoadedWhisper]):
    """The loaded audio models of this process."""

    def __init__(self, settings: AudioSettings) -> None:
        super().__init__(self._start)
        self._settings = settings

    async def _start(self, descriptor: ModelDescriptor, runtime: Runtime) -> LoadedWhisper:
        options = self.options(descriptor, runtime)
        libraries = cublas_environ() if runtime.gpu and runtime.name == CTRANSLATE2 else {}
        start: WorkerStart[FromWorker, WhisperReady] = WorkerStart(
            module=WORKER_MODULE,
            messages=FromWorker,
            ready=(WhisperReady,),
            model_id=descriptor.id,
            environ={**worker_environ(options.threads), **libraries},
            load=Load(runtime.name, options),
            seconds=self._settings.load_seconds,
        )
        return await start.run(lambda worker, ready: LoadedWhisper(descriptor.id, worker, ready, self._settings))

    def options(self, descriptor: ModelDescriptor, runtime: Runtime) -> EngineOptions:
        """Returns the options of a model under a runtime, for its worker and for the memory estimate."""
        settings = self._settings
        return EngineOptions(
            model_id=descriptor.id,
            path=str(descriptor.primary),
            threads=settings.threads or available_cores(),
            gpu=runtime.gpu,
            device=runtime.device,
            compute_type=settings.compute_type,
            batch_windows=settings.batch_windows,
            cache_folder=str(settings.cache_folder),
            whole_windows=settings.whole_windows,
        )


class AudioModels(RegisteredModels[LoadedWhisper]):
    """The registered audio models, and the loaded ones among them."""

    @asynccontextmanager
    async def loaded(self, stored: StoredModel, task: Task) -> AsyncIterator[LoadedWhisper]:
        """Leases a model for a task; if it cannot be loaded here but other replicas have it, the error says so.

        Raises:
            Unsupported: the model lacks the task, such as an English-only one for translations; `param` is `model`.
            ModelInvalid, ModelNotReady, Unsupported, OutOfMemory, Internal, Timeout: it cannot be served here.
        """
        require(stored, CAPABILITIES[task])
        async with self._leased(stored) as model:
            yield model
