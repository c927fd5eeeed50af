"""A loaded text model, seen from the service: requests in, pieces of answers out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from services.rpc.deadline import caller_deadline
from services.settings.settings import TextSettings
from services.telemetry import metrics
from services.telemetry.tracing import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS
from services.text.engine.messages import Encoded, FromWorker, Hold, Piece, Ready, Stepped, Submit
from services.text.engine.sampling import SamplingParams
from services.text.parsers.dialect import choose
from services.text.rendering.template_process import TemplateProcess
from services.text.resident import PendingText, TextModelInWorker
from services.worker.process import WorkerProcess

# Of an answer that nobody reads; then the worker is told to hold it. Some thousand tokens, or a hundred with logprobs.
UNREAD_BYTES = 256 * 1024
_PIECE_BYTES = 64  # what a piece takes beside its text


class Answer(PendingText):
    """The pieces of one request, in order. Pieces that come while nobody waits are handed over together."""

    def __init__(self, hold: Callable[[bool], None] = lambda _: None) -> None:
        """`hold` tells the worker that nobody reads, and that somebody does again."""
        super().__init__()
        self._pieces: list[Piece] = []
        self._hold = hold
        self._unread = 0  # bytes
        self._held = False
        self._first: Piece | None = None
        self._begun_at = 0.0  # when that came, on the monotonic clock
        self.tokens = 0  # generated so far

    async def ready(self) -> list[Piece]:
        """Waits for the next pieces; at least one. Raises the error that ended the request."""
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
        """How long its first token took, once it is there."""
        return self._begun_at - self.started if self._first else None

    @property
    def token_seconds(self) -> float | None:
        """How long each token after the first took, once there are two; as the mean."""
        more = self.tokens - self._first.completion_tokens if self._first else 0
        return (time.monotonic() - self._begun_at) / more if more else None

    @property
    def counts(self) -> Mapping[str, float]:
        """Tokens of prompt and answer."""
        cached = self._first.cached_tokens if self._first else 0
        return {INPUT_TOKENS: self.prompt_tokens, OUTPUT_TOKENS: self.tokens, CACHED_TOKENS: cached}

    def push(self, piece: Piece) -> None:
        """Takes a piece from the worker."""
        self._pieces.append(piece)
        self.tokens = piece.completion_tokens
        if self._first is None:
            self._first, self._begun_at = piece, time.monotonic()
        if piece.finish:
            self.finish()
        self._unread += _size(piece)
        if self._unread > UNREAD_BYTES and not self._held and not self.finished:
            self._held, self.owed = True, None
            self._hold(True)
        self._tell()


class LoadedTextModel(TextModelInWorker[Answer]):
    """A model that writes, in a worker process of its own."""

    def __init__(
        self,
        model_id: str,
        architecture: str,
        worker: WorkerProcess[FromWorker],
        ready: Ready,
        settings: TextSettings,
        template: TemplateProcess,
    ) -> None:
        """Takes over a worker that said Ready, and the process that will have its chat template once `open` is done."""
        self.ready = ready
        self.dialect = choose(ready.chat_template, architecture)
        self.template = template
        super().__init__(model_id, worker, ready.max_sequences, settings)
        self._part.set(metrics.CELLS, ready.kv_tokens)
        self._generated = metrics.GENERATED_TOKENS.labels(model_id)  # looked up once: it grows with every token

    async def open(self) -> None:
        """Compiles the chat template. Raises ModelInvalid where it does not compile; the model is closed then."""
        ready = self.ready
        try:
            await self.template.prepare(ready.chat_template, bos=ready.bos, eos=ready.eos, add_bos=ready.add_bos)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the worker, and the process with the template; requests that still run end with INTERNAL."""
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
    ) -> AsyncIterator[Answer]:
        """Runs a request as long as the block runs; leaving it early cancels the request.

        `prompt` is text, or its tokens; `grammar` constrains the answer; `logprobs` asks for those of every token and
        so many of the likeliest; `cache_key` names the client's session whose prefix is kept for its next request.

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
            )

        with self._open(answer, submit):
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
            return  # cancelled meanwhile
        if piece.finish:
            del self._requests[piece.request]
        self._measure(answer, piece)

    def _measure(self, answer: Answer, piece: Piece) -> None:
        """Hands a piece over, and counts what it brings."""
        before, first = answer.tokens, answer.first_token_seconds is None
        answer.push(piece)
        self._generated.inc(piece.completion_tokens - before)
        if not (first or piece.finish):
            return
        labels = metrics.gen_ai(self._model_id, answer.operation)
        if first:
            metrics.PROMPT_TOKENS.labels(self._model_id).inc(answer.prompt_tokens)
            metrics.CACHED_TOKENS.labels(self._model_id).inc(piece.cached_tokens)
            metrics.FIRST_TOKEN.labels(*labels).observe(answer.first_token_seconds or 0.0)
        if piece.finish:
            metrics.TOKEN_USAGE.labels(*labels, "input").observe(answer.prompt_tokens)
            metrics.TOKEN_USAGE.labels(*labels, "output").observe(piece.completion_tokens)
            if (seconds := answer.token_seconds) is not None:
                metrics.PER_TOKEN.labels(*labels).observe(seconds)


def _size(piece: Piece) -> int:
    """About how many bytes a piece takes here."""
    logprobs = sum(1 + len(each.top) for each in piece.logprobs or ())
    return (1 + logprobs) * _PIECE_BYTES + len(piece.text)
