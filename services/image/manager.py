"""ImageManager: loads diffusers pipelines into worker processes, each with the runtime that the registry chooses.

A loaded model takes prompts and pixels, and returns pixels.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import ClassVar

from services.image.engine.messages import (
    Accepted,
    Counters,
    EngineOptions,
    Finished,
    FromWorker,
    Generate,
    Load,
    Lora,
    Picture,
    PipelineReady,
    Progress,
    Result,
    Stepped,
)
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RuntimeSpec
from services.models.store import StoredModel
from services.residency.manager import ModelManager
from services.residency.registered_models import RegisteredModels, require
from services.rpc.deadline import caller_deadline
from services.settings.modality_settings import ImageSettings
from services.telemetry import metrics
from services.telemetry.figures import LATENCIES
from services.telemetry.tracing import IMAGES, INPUT_TOKENS, STEPS
from services.worker.model_in_worker import ModelInWorker
from services.worker.process import WorkerProcess, WorkerStart, available_cores, worker_environ
from services.worker.request_queue import Pending, RequestLimits

TILE = 16  # pixels: the side of an image token


class GenerationJob(Pending):
    """One request and its events, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.queued_since = None  # until its prompt is read
        self.share = 0.0  # computed share of its steps
        self._counts: dict[str, float] = {}
        self._unread: deque[Result] = deque()

    @property
    def counts(self) -> Mapping[str, float]:
        """Prompt tokens, pictures, and, once all pictures are done, their steps."""
        return self._counts

    def tokens(self, pixels: int) -> int:
        """Tokens to charge to the key's token rate so far; `pixels` is the total of all its pictures."""
        return int(self._counts.get(INPUT_TOKENS, 0)) + math.ceil(self.share * pixels / TILE**2)

    async def next(self) -> Result:
        """Waits for the next event. Raises the error that ended the request, after all earlier events."""
        while not self._unread:
            await self._wait()
        return self._unread.popleft()

    def push(self, result: Result) -> None:
        """Queues an event from the worker. Unread progress is replaced by newer progress, so that the queue of a slow
        reader never holds more than the requested pictures.
        """
        if self._unread and isinstance(result, Progress) and isinstance(self._unread[-1], Progress):
            self._unread.pop()
        self._unread.append(result)
        if isinstance(result, Accepted):
            self._counts[INPUT_TOKENS] = result.prompt_tokens
        elif isinstance(result, Progress):
            self.share = result.step / result.steps
        elif isinstance(result, Picture) and result.partial is None:
            self._counts[IMAGES] = self._counts.get(IMAGES, 0) + 1
        elif isinstance(result, Finished):
            self._counts[STEPS] = result.steps
            self.share = 1.0
            self.finish()
        self._notify()


class LoadedPipeline(ModelInWorker[GenerationJob, FromWorker]):
    """A diffusers pipeline in its own worker process."""

    # The worker's reader thread accepts requests even when the batch loop hangs.
    no_progress: ClassVar[tuple[type, ...]] = (Accepted,)

    def __init__(
        self, model_id: str, worker: WorkerProcess[FromWorker], ready: PipelineReady, settings: ImageSettings
    ) -> None:
        """Takes over a worker that sent PipelineReady."""
        self.ready = ready
        self.counters = Counters(0, 0, 0, 0)
        limits = RequestLimits(
            running=ready.batch_images,
            queue=settings.queue_limit,
            queue_variable="ALLM_IMAGE_QUEUE",
            seconds=settings.request_seconds,
            seconds_variable="ALLM_IMAGE_REQUEST_SECONDS",
            stall_seconds=settings.stall_seconds,
        )
        super().__init__(model_id, worker, limits)

    @contextmanager
    def generate(self, generate: Generate) -> Iterator[GenerationJob]:
        """Runs a request for the duration of the block; leaving the block early cancels the request.

        Raises:
            Overloaded: the queue is full.
        """
        deadline = caller_deadline()
        at = deadline.at if deadline else None
        with self._open(GenerationJob(), lambda number: replace(generate, request=number, deadline=at)) as job:
            yield job

    def _handle(self, message: FromWorker) -> None:
        if isinstance(message, Stepped):
            self._entered(message.phases)
            self._count(message.counters)
            return
        if not isinstance(message, Result):
            return
        job = self._requests.get(message.request)
        if job is None:
            return  # cancelled meanwhile
        if isinstance(message, Accepted):
            job.queued_since = time.monotonic()
        if isinstance(message, Picture) and message.partial is None:
            self._measure(job)
        job.push(message)
        if isinstance(message, Finished):
            del self._requests[message.request]

    def _measure(self, job: GenerationJob) -> None:
        metrics.IMAGES.labels(self._model_id).inc()
        if IMAGES not in job.counts:
            seconds = time.monotonic() - job.started
            metrics.FIRST_IMAGE.labels(self._model_id).observe(seconds)
            LATENCIES.record("first_output", self._model_id, seconds)

    def _reset(self) -> None:
        self._count(Counters(self.counters.steps, 0, 0, 0))

    def _count(self, counters: Counters) -> None:
        before, self.counters = self.counters, counters
        self._set_gauges(counters.running, counters.waiting)
        if (steps := counters.steps - before.steps) > 0:
            metrics.STEPS.labels(self._model_id).inc(steps)
            metrics.IMAGE_STEPS.labels(self._model_id).inc(steps * counters.batch)
            metrics.BATCH_IMAGES.labels(self._model_id).observe(counters.batch)


WORKER_MODULE = "services.image.engine"
CAPABILITY = "image"


class ImageManager(ModelManager[LoadedPipeline]):
    """Loads the image models of this process, each on the device of its runtime."""

    def __init__(self, settings: ImageSettings) -> None:
        super().__init__(self._start)
        self._settings = settings

    async def _start(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> LoadedPipeline:
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

    def options(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> EngineOptions:
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
