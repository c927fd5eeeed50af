"""A loaded text model, seen from the service: requests in, pieces of answers out, and the watchdog beside them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.residency.worker import WorkerDied, WorkerProcess
from services.rpc import metrics
from services.rpc.errors import AllmError, Internal, Overloaded, Timeout, from_code
from services.rpc.settings import TextSettings
from services.text.engine.messages import (
    Accepted,
    Cancel,
    Counters,
    FromWorker,
    Piece,
    Ready,
    Refused,
    Stepped,
    Stop,
    Submit,
)
from services.text.engine.sampling import SamplingParams
from services.text.parsers.dialect import choose
from services.text.prompt import ChatTemplate

log = logging.getLogger(__name__)

WATCH_INTERVAL = 1.0  # seconds between two looks of the watchdog


class Answer:
    """The pieces of one request, in order. Pieces that come while nobody waits are handed over together."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.started = time.monotonic()
        self.finished = False
        self._pieces: list[Piece] = []
        self._error: AllmError | None = None
        self._news = asyncio.Event()

    async def ready(self) -> list[Piece]:
        """Waits for the next pieces; at least one. Raises the error that ended the request."""
        while not self._pieces:
            if self._error:
                raise self._error
            await self._news.wait()
            self._news.clear()
        pieces, self._pieces = self._pieces, []
        return pieces

    async def accepted(self) -> int:
        """Waits until the prompt is tokenized; gives its tokens. Raises the error that ended the request."""
        while not self.prompt_tokens:
            if self._error:
                raise self._error
            await self._news.wait()
            self._news.clear()
        return self.prompt_tokens

    def accept(self, prompt_tokens: int) -> None:
        """The prompt is tokenized and fits."""
        self.prompt_tokens = prompt_tokens
        self._news.set()

    def push(self, piece: Piece) -> None:
        """Takes a piece from the worker."""
        self._pieces.append(piece)
        self.finished = piece.finish is not None
        self._news.set()

    def fail(self, error: AllmError) -> None:
        """Ends the request with an error, after the pieces that are there already."""
        if not self.finished:
            self.finished, self._error = True, error
            self._news.set()


class LoadedTextModel:
    """A model in a worker process of its own."""

    def __init__(
        self,
        model_id: str,
        architecture: str,
        worker: WorkerProcess[FromWorker],
        ready: Ready,
        settings: TextSettings,
    ) -> None:
        """Takes over a worker that said Ready. Raises ModelInvalid when the chat template does not compile."""
        self.ready = ready
        self.dialect = choose(ready.chat_template, architecture)
        self.template = ChatTemplate(ready.chat_template, bos=ready.bos, eos=ready.eos, add_bos=ready.add_bos)
        self._model_id = model_id
        self._worker = worker
        self._settings = settings
        self._capacity = ready.max_sequences + settings.queue_limit
        self._answers: dict[int, Answer] = {}
        self._requests = itertools.count(1)
        self._progress = time.monotonic()  # when the worker last got something done
        self._stalled = False
        self.counters = Counters(0, 0, 0, 0, 0, 0)
        self.alive = True
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._worker.pid

    @property
    def peak_memory(self) -> int:
        """The most memory that the worker has held, in bytes."""
        return self._worker.peak_memory

    @asynccontextmanager
    async def generate(
        self,
        client: str,
        prompt: str | list[int],
        sampling: SamplingParams,
        grammar: str = "",
        logprobs: int | None = None,
    ) -> AsyncIterator[Answer]:
        """Runs a request as long as the block runs; leaving it early cancels the request.

        `prompt` is text, or its tokens; `grammar` constrains the answer; `logprobs` asks for those of every token and
        so many of the likeliest.

        Raises:
            Overloaded: the queue is full.
        """
        if not self.alive:
            raise Internal(f"the worker of {self._model_id} has just ended; ask again")
        if len(self._answers) >= self._capacity:
            raise Overloaded(
                f"{self._model_id} is busy: {self.ready.max_sequences} requests run and {self._settings.queue_limit} "
                "wait (ALLM_QUEUE_LIMIT)"
            )
        request, answer = next(self._requests), Answer()
        self._answers[request] = answer
        limit = self._settings.request_seconds
        late = Timeout(f"the request took longer than {limit:g} seconds (ALLM_REQUEST_SECONDS)")
        timer = asyncio.get_running_loop().call_later(limit, self._expire, request, late)
        submit = Submit(
            request, client, prompt, sampling, grammar=grammar, logprobs=logprobs, special=self.dialect.special
        )
        self._worker.send(submit)
        try:
            yield answer
        finally:
            timer.cancel()
            if self._answers.pop(request, None) and self.alive:
                self._worker.send(Cancel(request))

    async def close(self) -> None:
        """Ends the worker; requests that still run end with INTERNAL."""
        self.alive = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end(Internal(f"{self._model_id} is being unloaded"))
        await self._worker.close(ask=lambda: self._worker.send(Stop()))

    # --- what the worker says

    async def _listen(self) -> None:
        try:
            async for message in self._worker.messages():
                self._take(message)
        except WorkerDied as death:
            self._died(str(death))
        except Exception:
            log.exception("cannot understand the worker", extra={"model": self._model_id})
            self._worker.kill()
            self._died(f"worker {self.pid} of {self._model_id} sent what cannot be read")

    def _take(self, message: FromWorker) -> None:
        if not isinstance(message, Accepted):  # that one comes from a thread which runs on when the batch loop hangs
            self._progress = time.monotonic()
        if isinstance(message, Stepped):
            for piece in message.pieces:
                self._hand_over(piece)
            self._count(message.counters)
        elif isinstance(message, Accepted):
            if answer := self._answers.get(message.request):
                answer.accept(message.prompt_tokens)
        elif isinstance(message, Refused) and (answer := self._answers.pop(message.request, None)):
            answer.fail(from_code(message.code, message.message, message.param))

    def _hand_over(self, piece: Piece) -> None:
        answer = self._answers.get(piece.request)
        if answer is None:
            return  # cancelled meanwhile
        if not piece.finish:
            answer.push(piece)
            return
        del self._answers[piece.request]
        answer.push(piece)
        metrics.PROMPT_TOKENS.labels(self._model_id).inc(answer.prompt_tokens)
        metrics.CACHED_TOKENS.labels(self._model_id).inc(piece.cached_tokens)
        metrics.GENERATED_TOKENS.labels(self._model_id).inc(piece.completion_tokens)

    def _count(self, counters: Counters) -> None:
        self.counters = counters
        metrics.RUNNING.labels(self._model_id).set(counters.running)
        metrics.WAITING.labels(self._model_id).set(counters.waiting)
        metrics.ACTIVE_CELLS.labels(self._model_id).set(counters.active_cells)
        metrics.CACHED_CELLS.labels(self._model_id).set(counters.cached_cells)
        metrics.PREEMPTED.labels(self._model_id).set(counters.preempted)
        metrics.STEPS.labels(self._model_id).set(counters.steps)

    # --- when it goes wrong

    def _died(self, how: str) -> None:
        log.error("worker died", extra={"model": self._model_id, "how": how})
        self.alive = False
        metrics.WORKER_DEATHS.labels(self._model_id).inc()
        self._count(Counters(self.counters.steps, 0, 0, 0, 0, self.counters.preempted))
        self._end(Timeout(f"{self._model_id} made no progress and was ended") if self._stalled else Internal(how))

    def _expire(self, request: int, error: AllmError) -> None:
        """Ends a request whose time is over, and frees its place even while its caller does not read."""
        if answer := self._answers.pop(request, None):
            answer.fail(error)
            self._worker.send(Cancel(request))

    def _end(self, error: AllmError) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.fail(error)

    async def _watch(self) -> None:
        """Kills a worker that owes answers and says nothing: that is the one sure way out of hung native code."""
        limit = self._settings.stall_seconds
        while self.alive:
            await asyncio.sleep(min(WATCH_INTERVAL, limit / 2))
            oldest = next(iter(self._answers.values()), None)
            if oldest and time.monotonic() - max(self._progress, oldest.started) > limit:
                log.error("worker stalled", extra={"model": self._model_id, "seconds": limit})
                self._stalled = True
                self._worker.kill()
                return
