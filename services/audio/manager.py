"""AudioManager: loads Whisper models into worker processes, each with the runtime that the registry chooses.

A loaded model takes sound and returns segments.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import ClassVar

from services.audio.engine.messages import (
    SAMPLE_RATE,
    Consumed,
    Counters,
    Decoding,
    EngineOptions,
    Finished,
    FromWorker,
    Load,
    PartialText,
    Result,
    Sound,
    Stepped,
    Submit,
    Task,
    Transcribed,
    WhisperReady,
)
from services.errors import AllmError
from services.models.descriptor import ModelDescriptor
from services.models.runtimes import RuntimeSpec
from services.models.store import StoredModel
from services.residency.manager import ModelManager
from services.residency.registered_models import RegisteredModels, require
from services.rpc.deadline import caller_deadline
from services.settings.modality_settings import AudioSettings
from services.telemetry import metrics
from services.telemetry.figures import LATENCIES
from services.telemetry.tracing import AUDIO_SECONDS, OUTPUT_TOKENS
from services.worker.devices import cublas_environ
from services.worker.model_in_worker import ModelInWorker
from services.worker.process import WorkerProcess, WorkerStart, available_cores, worker_environ
from services.worker.request_queue import Pending, RequestLimits

SOUND_AHEAD = 600 * SAMPLE_RATE  # samples that the worker may hold of a request; further sound waits
SOUND_OWED = 120 * SAMPLE_RATE  # samples, more than any window: a worker that holds them owes a step
UNREAD = 256  # messages that may wait for a slow reader; further sound waits
BYTES_PER_SAMPLE = 2


class TranscriptionJob(Pending):
    """One request: its sound goes in, and its results come out in order."""

    def __init__(self, send: Callable[[object], None]) -> None:
        super().__init__()
        self.owed = None  # the worker owes nothing until it has sound
        self.queued_since = None  # set by the first sound; never for live sound, which is taken as fast as it arrives
        self.live = False  # the sound arrives as it is spoken
        self.number = 0
        self._send = send
        self._sent = 0  # samples
        self._consumed = 0  # of these, samples that the worker no longer holds
        self._all_sent = False
        self.has_text = False  # a segment has arrived
        self._text_seconds = 0.0  # end of the last segment or partial
        self._counts: dict[str, float] = {}
        self._unread: deque[Result] = deque()
        self._room = asyncio.Event()

    @property
    def processed_seconds(self) -> float:
        """Seconds of sound that the worker has consumed or returned text for, so far."""
        return self._counts.get(AUDIO_SECONDS, max(self._consumed / SAMPLE_RATE, self._text_seconds))

    @property
    def unconsumed(self) -> int:
        """Samples that the worker has and may still need."""
        return self._sent - self._consumed

    @property
    def counts(self) -> Mapping[str, float]:
        """Seconds of sound and tokens of text, once the request is done."""
        return self._counts

    async def feed(self, samples: bytes, *, last: bool = False) -> None:
        """Sends sound; waits while the worker has enough, or while its messages are not read.

        Raises the error that ended the request.
        """
        while not self.finished and (self.unconsumed >= SOUND_AHEAD or len(self._unread) >= UNREAD):
            self._room.clear()
            await self._room.wait()
        self._check()
        if self.finished:
            return  # the worker finished before the end of the sound
        if not self._sent and not self.live:
            self.queued_since = time.monotonic()
        self._sent += len(samples) // BYTES_PER_SAMPLE
        self._all_sent = last
        self._send(Sound(self.number, samples, last))
        self._update_owed()

    async def next(self) -> Result:
        """Waits for the next message. Raises the error that ended the request, after the messages before it."""
        while not self._unread:
            await self._wait()
        result = self._unread.popleft()
        self._room.set()
        return result

    def push(self, result: Result) -> None:
        """Takes a message from the worker. It replaces a partial that was not read yet."""
        if self._unread and isinstance(self._unread[-1], PartialText):
            self._unread.pop()
        self._unread.append(result)
        if isinstance(result, Transcribed) and result.segments:
            self._text_seconds = result.segments[-1].end
        elif isinstance(result, PartialText):
            self._text_seconds = result.end
        if isinstance(result, Finished):
            self._counts = {AUDIO_SECONDS: result.seconds, OUTPUT_TOKENS: result.tokens}
            self.finish()
            self._room.set()
        self._notify()

    def consumed(self, samples: int) -> None:
        """Records that the worker no longer holds the first `samples` samples."""
        self._consumed = samples
        self.begun = True
        self.owed = None  # restarts the clock of the watchdog
        self._update_owed()
        self._room.set()

    def fail(self, error: AllmError) -> None:
        """Ends the request with an error, after the messages received so far; `feed` raises it as well."""
        super().fail(error)
        self._room.set()

    def _update_owed(self) -> None:
        """Tracks whether the worker has something to compute: a speaker's pause is not a stall."""
        owes = self._all_sent or self.unconsumed >= SOUND_OWED
        if not owes:
            self.owed = None
        elif self.owed is None:
            self.owed = time.monotonic()


class LoadedWhisper(ModelInWorker[TranscriptionJob, FromWorker]):
    """A Whisper model in its own worker process."""

    # The preparation runs in parallel with the batch loop: it is a sign of life for its own request alone.
    no_progress: ClassVar[tuple[type, ...]] = (Consumed,)

    def __init__(
        self, model_id: str, worker: WorkerProcess[FromWorker], ready: WhisperReady, settings: AudioSettings
    ) -> None:
        """Takes over a worker that has sent WhisperReady."""
        self.ready = ready
        self.counters = Counters(0, 0, 0, 0)
        limits = RequestLimits(
            running=ready.batch_windows,
            queue=settings.queue_limit,
            queue_variable="ALLM_AUDIO_QUEUE",
            seconds=settings.request_seconds,
            seconds_variable="ALLM_AUDIO_REQUEST_SECONDS",
            stall_seconds=settings.stall_seconds,
        )
        super().__init__(model_id, worker, limits)

    @contextmanager
    def transcribe(self, client: str, decoding: Decoding) -> Iterator[TranscriptionJob]:
        """Runs a request for the duration of the block; leaving it early cancels the request.

        Raises:
            Overloaded: the queue is full.
        """
        job = TranscriptionJob(self._worker.send)
        job.live = decoding.live
        deadline = caller_deadline()

        def submit(request: int) -> Submit:
            job.number = request
            return Submit(request, client, decoding, deadline.at if deadline else None)

        with self._open(job, submit):
            yield job

    def _handle(self, message: FromWorker) -> None:
        if isinstance(message, Stepped):
            self._entered(message.phases)
            self._count(message.counters)
            return
        if not isinstance(message, Consumed | Result):
            return
        job = self._requests.get(message.request)
        if job is None:
            return  # cancelled meanwhile
        if isinstance(message, Consumed):
            job.consumed(message.samples)
            return
        self._measure(message, job)
        job.push(message)
        if isinstance(message, Finished):
            del self._requests[message.request]

    def _measure(self, message: Result, job: TranscriptionJob) -> None:
        if isinstance(message, Transcribed) and not job.has_text:
            job.has_text = True
            seconds = time.monotonic() - job.started
            metrics.FIRST_SEGMENT.labels(self._model_id).observe(seconds)
            LATENCIES.record("first_output", self._model_id, seconds)
        elif isinstance(message, Finished):
            metrics.AUDIO_SECONDS.labels(self._model_id).inc(message.seconds)
            metrics.SPEECH_SECONDS.labels(self._model_id).inc(message.speech_seconds)
            metrics.GENERATED_TOKENS.labels(self._model_id).inc(message.tokens)

    def _reset(self) -> None:
        self._count(Counters(self.counters.steps, 0, 0, 0))

    def _count(self, counters: Counters) -> None:
        before, self.counters = self.counters, counters
        self._set_gauges(counters.running, counters.waiting)
        if counters.steps > before.steps:
            metrics.STEPS.labels(self._model_id).inc(counters.steps - before.steps)
            metrics.WINDOWS.labels(self._model_id).observe(counters.windows)


WORKER_MODULE = "services.audio.engine"
CTRANSLATE2 = "faster_whisper"  # the runtime
CAPABILITIES: dict[Task, str] = {"transcribe": "transcription", "translate": "translation"}


class AudioManager(ModelManager[LoadedWhisper]):
    """The loaded audio models of this process."""

    def __init__(self, settings: AudioSettings) -> None:
        super().__init__(self._start)
        self._settings = settings

    async def _start(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> LoadedWhisper:
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

    def options(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> EngineOptions:
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
