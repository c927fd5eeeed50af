"""A loaded image model, seen from the service: prompts and pixels in, pixels out."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from services.image.engine.messages import (
    Accepted,
    Counters,
    Finished,
    FromWorker,
    Generate,
    Picture,
    Progress,
    Ready,
    Stepped,
)
from services.rpc.deadline import caller_deadline
from services.settings.settings import ImageSettings
from services.telemetry import metrics
from services.telemetry.tracing import IMAGES, INPUT_TOKENS, STEPS
from services.worker.model_in_worker import ModelInWorker, Pending, RequestLimits
from services.worker.process import WorkerProcess

TILE = 16  # pixels: the side of what counts as an image token

News = Accepted | Progress | Picture | Finished


class GenerationJob(Pending):
    """One request, and the news of it in order."""

    def __init__(self) -> None:
        super().__init__()
        self.queued_since = None  # until its prompt is read
        self.told = False  # whether a picture has come
        self.share = 0.0  # of its steps, that is computed
        self._counts: dict[str, float] = {}
        self._unread: deque[News] = deque()

    @property
    def counts(self) -> Mapping[str, float]:
        """Tokens of the prompt, pictures, and, once they are done, steps of them all."""
        return self._counts

    def tokens(self, pixels: int) -> int:
        """What it counts for so far where a key has a rate of tokens, with so many pixels of all its pictures."""
        return int(self._counts.get(INPUT_TOKENS, 0)) + math.ceil(self.share * pixels / TILE**2)

    async def next(self) -> News:
        """Waits for the next news. Raises the error that ended the request, after what came before it."""
        while not self._unread:
            await self._wait()
        return self._unread.popleft()

    def push(self, news: News) -> None:
        """Takes news from the worker. Of progress that nobody has read only the newest counts, so that what waits for a
        slow reader is never more than the pictures that were asked for.
        """
        if self._unread and isinstance(news, Progress) and isinstance(self._unread[-1], Progress):
            self._unread.pop()
        self._unread.append(news)
        if isinstance(news, Accepted):
            self._counts[INPUT_TOKENS] = news.prompt_tokens
        elif isinstance(news, Progress):
            self.share = news.step / news.steps
        elif isinstance(news, Picture) and news.partial is None:
            self._counts[IMAGES] = self._counts.get(IMAGES, 0) + 1
        elif isinstance(news, Finished):
            self._counts[STEPS] = news.steps
            self.share = 1.0
            self.finish()
        self._tell()


class LoadedPipeline(ModelInWorker[GenerationJob, FromWorker]):
    """A pipeline of diffusers in a worker process of its own."""

    # Requests are accepted beside the loop that draws, also when that hangs.
    beside: ClassVar[tuple[type, ...]] = (Accepted,)

    def __init__(self, model_id: str, worker: WorkerProcess[FromWorker], ready: Ready, settings: ImageSettings) -> None:
        """Takes over a worker that said Ready."""
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
    def draw(self, generate: Callable[[int], Generate]) -> Iterator[GenerationJob]:
        """Runs a request as long as the block runs; leaving it early cancels the request.

        `generate` makes the worker's message for a request's number.

        Raises:
            Overloaded: the queue is full.
        """
        deadline = caller_deadline()

        def timed(request: int) -> Generate:
            return replace(generate(request), deadline=deadline.at if deadline else None)

        with self._open(GenerationJob(), timed) as drawing:
            yield drawing

    def _heard(self, message: FromWorker) -> None:
        if isinstance(message, Stepped):
            self._entered(message.phases)
            self._count(message.counters)
            return
        if not isinstance(message, Accepted | Progress | Picture | Finished):
            return
        drawing = self._requests.get(message.request)
        if drawing is None:
            return  # cancelled meanwhile
        if isinstance(message, Accepted):
            drawing.queued_since = time.monotonic()
        if isinstance(message, Picture) and message.partial is None:
            self._measure(drawing)
        drawing.push(message)
        if isinstance(message, Finished):
            del self._requests[message.request]

    def _measure(self, drawing: GenerationJob) -> None:
        metrics.IMAGES.labels(self._model_id).inc()
        if not drawing.told:
            drawing.told = True
            metrics.FIRST_IMAGE.labels(self._model_id).observe(time.monotonic() - drawing.started)

    def _emptied(self) -> None:
        self._count(Counters(self.counters.steps, 0, 0, 0))

    def _count(self, counters: Counters) -> None:
        before, self.counters = self.counters, counters
        self._tell_places(counters.running, counters.waiting)
        if (steps := counters.steps - before.steps) > 0:
            metrics.STEPS.labels(self._model_id).inc(steps)
            metrics.IMAGE_STEPS.labels(self._model_id).inc(steps * counters.batch)
            metrics.BATCH_IMAGES.labels(self._model_id).observe(counters.batch)
