"""The service's side of a loaded text model: sends requests and receives their results. `LoadedTextModel` generates."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import ClassVar, TypeVar

from services.rpc.deadline import caller_deadline
from services.settings.modality_settings import TextSettings
from services.telemetry import metrics
from services.telemetry.figures import LATENCIES
from services.telemetry.tracing import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS
from services.text.engine.messages import (
    Accepted,
    Counters,
    DecoderReady,
    Encoded,
    FromWorker,
    Hold,
    Piece,
    Pixels,
    Stepped,
    Submit,
)
from services.text.engine.sampling import SamplingParams
from services.text.parsers.dialect import choose
from services.text.template_process import TemplateProcess
from services.worker.model_in_worker import ModelInWorker
from services.worker.process import WorkerProcess
from services.worker.request_queue import Pending, RequestLimits

# The limit of unread output per answer, above which the worker holds the request: a few thousand tokens, or about a
# hundred with logprobs.
UNREAD_BYTES = 256 * 1024
_PIECE_BYTES = 64  # overhead of a piece in addition to its text


class PendingText(Pending):
    """A request whose prompt or inputs the worker tokenizes."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt_tokens = 0
        self.prompt = ""  # the text of a prompt given as tokens, or scored; available after acceptance

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
        self._drafted = metrics.DRAFT_TOKENS.labels(model_id)
        self._accepted = metrics.ACCEPTED_TOKENS.labels(model_id)
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
        self._count(replace(self.counters, running=0, waiting=0, active_cells=0, cached_cells=0))

    def _count(self, counters: Counters) -> None:
        before, self.counters = self.counters, counters
        self._set_gauges(counters.running, counters.waiting)
        if counters.preempted > before.preempted:
            self._preempted.inc(counters.preempted - before.preempted)
        if counters.drafted > before.drafted:
            self._drafted.inc(counters.drafted - before.drafted)
            self._accepted.inc(counters.accepted - before.accepted)
        if counters.steps > before.steps:
            self._steps.inc(counters.steps - before.steps)
            self._batch_sequences.observe(counters.batch)
            self._batch_tokens.observe(counters.batch_tokens)


class Answer(PendingText):
    """The pieces of one request, in order. Pieces that arrive while no reader waits are returned together."""

    def __init__(self, hold: Callable[[bool], None] = lambda _: None) -> None:
        """`hold` pauses the request in the worker (True) while no one reads its pieces, and resumes it (False)."""
        super().__init__()
        self._pieces: list[Piece] = []
        self._hold = hold
        self._unread = 0  # bytes
        self._held = False
        self._first: Piece | None = None
        self._begun_at = 0.0  # arrival of the first piece, on the monotonic clock
        self.tokens = 0  # generated so far

    async def ready(self) -> list[Piece]:
        """Waits for at least one piece and returns all new ones. Raises the error that ended the request."""
        while not self._pieces:
            await self._wait()
        pieces, self._pieces = self._pieces, []
        self._unread = 0
        if self._held and not self.finished:
            self._held, self.owed = False, time.monotonic()
            self._hold(False)
        return pieces

    @property
    def first_token_seconds(self) -> float | None:
        """The time to the first token; None until then."""
        return self._begun_at - self.started if self._first else None

    @property
    def token_seconds(self) -> float | None:
        """The mean time per token after the first; None with fewer than two tokens."""
        more = self.tokens - self._first.completion_tokens if self._first else 0
        return (time.monotonic() - self._begun_at) / more if more else None

    @property
    def counts(self) -> Mapping[str, float]:
        """Token counts of the prompt and the answer."""
        cached = self._first.cached_tokens if self._first else 0
        return {INPUT_TOKENS: self.prompt_tokens, OUTPUT_TOKENS: self.tokens, CACHED_TOKENS: cached}

    def push(self, piece: Piece) -> None:
        """Adds a piece from the worker."""
        self._pieces.append(piece)
        self.tokens = piece.completion_tokens
        if self._first is None and (piece.completion_tokens or piece.finish):
            self._first, self._begun_at = piece, time.monotonic()
        if piece.finish:
            self.finish()
        self._unread += _size(piece)
        if self._unread > UNREAD_BYTES and not self._held and not self.finished:
            self._held, self.owed = True, None
            self._hold(True)
        self._notify()


class LoadedTextModel(TextModelInWorker[Answer]):
    """A generative text model in its worker process."""

    def __init__(
        self,
        model_id: str,
        architecture: str,
        worker: WorkerProcess[FromWorker],
        ready: DecoderReady,
        settings: TextSettings,
        template: TemplateProcess,
    ) -> None:
        """Takes over a ready worker, and the renderer process, which gets the chat template in `open`."""
        self.ready = ready
        self.dialect = choose(ready.chat_template, architecture)
        self.template = template
        super().__init__(model_id, worker, ready.max_sequences, settings)
        self._part.set(metrics.CELLS, ready.kv_tokens)
        self._generated = metrics.GENERATED_TOKENS.labels(model_id)  # looked up once, because every token increments it

    async def open(self) -> None:
        """Compiles the chat template. Raises ModelInvalid if it does not compile, after closing the model."""
        ready = self.ready
        try:
            await self.template.prepare(ready.chat_template, bos=ready.bos, eos=ready.eos, add_bos=ready.add_bos)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stops the worker and the renderer process; running requests end with INTERNAL."""
        await super().close()
        await self.template.close()

    @asynccontextmanager
    async def generate(
        self,
        client: str,
        prompt: str | list[int],
        sampling: SamplingParams,
        grammar: str = "",
        logprobs: int | None = None,
        cache_key: str = "",
        suffix: str = "",
        prediction: str = "",
        pictures: Sequence[Pixels] = (),
        mark: str = "",
        *,
        scored: bool = False,
        room_required: bool = True,
    ) -> AsyncIterator[Answer]:
        """Runs a request while the block runs; leaving it early cancels the request.

        `prompt` is text, or its tokens; `grammar` constrains the answer; `logprobs` requests the log probability of
        each token and of that many top alternatives; `cache_key` names the client's session, whose prefix is cached;
        `suffix` is the text after the gap that the answer fills; `prediction` is the answer that the caller expects;
        `pictures` are those of the prompt, in its order, and `mark` stands in it for each;
        `scored`: `logprobs` is for the prompt's tokens, too; `room_required`: `max_tokens` must fit into the context.

        Raises:
            Overloaded: the queue is full.
        """

        deadline = caller_deadline()
        answer = Answer(lambda held: self._worker.send(Hold(number, held)))
        number = 0

        def submit(request: int) -> Submit:
            nonlocal number
            number = request
            special = self.dialect.special
            return Submit(
                request,
                client,
                prompt,
                sampling,
                grammar=grammar,
                logprobs=logprobs,
                special=special,
                cache_key=cache_key,
                deadline=deadline.at if deadline else None,
                suffix=suffix,
                prediction=prediction,
                scored=scored,
                room_required=room_required,
                pictures=tuple(pictures),
                mark=mark,
            )

        with self._open(answer, submit):
            pictures = ()  # the worker has them; an answer may take long
            yield answer

    def _step(self, message: Stepped | Encoded) -> None:
        if isinstance(message, Stepped):
            for piece in message.pieces:
                self._hand_over(piece)
            self._part.set(metrics.ACTIVE_CELLS, message.counters.active_cells)
            self._part.set(metrics.CACHED_CELLS, message.counters.cached_cells)

    def _hand_over(self, piece: Piece) -> None:
        answer = self._requests.get(piece.request)
        if answer is None:
            return  # cancelled in the meantime
        if piece.finish:
            del self._requests[piece.request]
        self._measure(answer, piece)

    def _measure(self, answer: Answer, piece: Piece) -> None:
        """Passes a piece to its answer and updates the metrics."""
        before, waited = answer.tokens, answer.first_token_seconds is None
        answer.push(piece)
        first = waited and answer.first_token_seconds is not None
        self._generated.inc(piece.completion_tokens - before)
        if not (first or piece.finish):
            return
        labels = metrics.gen_ai(self._model_id, answer.operation)
        if first:
            metrics.PROMPT_TOKENS.labels(self._model_id).inc(answer.prompt_tokens)
            metrics.CACHED_TOKENS.labels(self._model_id).inc(piece.cached_tokens)
            seconds = answer.first_token_seconds or 0.0
            metrics.FIRST_TOKEN.labels(*labels).observe(seconds)
            LATENCIES.record("first_output", self._model_id, seconds)
        if piece.finish:
            metrics.TOKEN_USAGE.labels(*labels, "input").observe(answer.prompt_tokens)
            metrics.TOKEN_USAGE.labels(*labels, "output").observe(piece.completion_tokens)
            if (between := answer.token_seconds) is not None:
                metrics.PER_TOKEN.labels(*labels).observe(between)
                LATENCIES.record("output_token", self._model_id, between)


def _size(piece: Piece) -> int:
    """Estimates the memory of a piece in bytes."""
    found = (*(piece.logprobs or ()), *(piece.prompt_logprobs or ()))
    logprobs = sum(1 + len(each.top) for each in found)
    return (1 + logprobs) * _PIECE_BYTES + len(piece.text)
