"""The service's side of a text model's worker process: requests that the worker tokenizes, and its counters."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import ClassVar, TypeVar

from services.settings.settings import TextSettings
from services.telemetry import metrics
from services.text.engine.messages import Accepted, Counters, Encoded, FromWorker, Stepped
from services.worker.model_in_worker import ModelInWorker
from services.worker.pending import Pending, RequestLimits
from services.worker.process import WorkerProcess


class PendingText(Pending):
    """A request whose prompt or inputs the worker tokenizes."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt_tokens = 0
        self.prompt = ""  # the text of a prompt given as tokens, available after acceptance

    async def accepted(self) -> int:
        """Waits until the input is tokenized and returns its token count. Raises the error that ended the request."""
        while not self.prompt_tokens:
            await self._wait()
        return self.prompt_tokens

    def accept(self, prompt_tokens: int, prompt: str = "") -> None:
        """Records that the input is tokenized and fits."""
        self.prompt_tokens, self.prompt = prompt_tokens, prompt
        self.queued_since = time.monotonic()
        self._notify()


P = TypeVar("P", bound=PendingText)


class TextModelInWorker(ModelInWorker[P, FromWorker]):
    """The service's side of a worker with a text model; `P` is the type of its requests."""

    no_progress: ClassVar[tuple[type, ...]] = (Accepted,)

    def __init__(
        self, model_id: str, worker: WorkerProcess[FromWorker], max_sequences: int, settings: TextSettings
    ) -> None:
        """Takes over a ready worker."""
        self.counters = Counters(0, 0, 0, 0, 0, 0)
        # Looked up once, because they change with every step.
        self._steps = metrics.STEPS.labels(model_id)
        self._preempted = metrics.PREEMPTED.labels(model_id)
        self._batch_sequences = metrics.BATCH_SEQUENCES.labels(model_id)
        self._batch_tokens = metrics.BATCH_TOKENS.labels(model_id)
        limits = RequestLimits(
            running=max_sequences,
            queue=settings.queue_limit,
            seconds=settings.request_seconds,
            stall_seconds=settings.stall_seconds,
        )
        super().__init__(model_id, worker, limits)

    @abstractmethod
    def _step(self, message: Stepped | Encoded) -> None:
        """Distributes the results of a worker's step."""

    def _handle(self, message: FromWorker) -> None:
        if isinstance(message, Stepped | Encoded):
            self._entered(message.phases)
            self._step(message)
            self._count(message.counters)
        elif isinstance(message, Accepted) and (pending := self._requests.get(message.request)):
            pending.accept(message.prompt_tokens, message.prompt)

    def _reset(self) -> None:
        self._count(Counters(self.counters.steps, 0, 0, 0, 0, self.counters.preempted))

    def _count(self, counters: Counters) -> None:
        before, self.counters = self.counters, counters
        self._set_gauges(counters.running, counters.waiting)
        if counters.preempted > before.preempted:
            self._preempted.inc(counters.preempted - before.preempted)
        if counters.steps > before.steps:
            self._steps.inc(counters.steps - before.steps)
            self._batch_sequences.observe(counters.batch)
            self._batch_tokens.observe(counters.batch_tokens)
