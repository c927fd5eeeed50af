"""A loaded text model, seen from the service: requests in, pieces of answers out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.residency.worker import WorkerProcess
from services.rpc import metrics
from services.rpc.settings import TextSettings
from services.text.engine.messages import Encoded, FromWorker, Piece, Ready, Stepped, Submit
from services.text.engine.sampling import SamplingParams
from services.text.parsers.dialect import choose
from services.text.prompt import ChatTemplate
from services.text.resident import PendingText, TextModelInWorker


class Answer(PendingText):
    """The pieces of one request, in order. Pieces that come while nobody waits are handed over together."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Piece] = []

    async def ready(self) -> list[Piece]:
        """Waits for the next pieces; at least one. Raises the error that ended the request."""
        while not self._pieces:
            await self._wait()
        pieces, self._pieces = self._pieces, []
        return pieces

    def push(self, piece: Piece) -> None:
        """Takes a piece from the worker."""
        self._pieces.append(piece)
        self.finished = piece.finish is not None
        self._news.set()


class LoadedTextModel(TextModelInWorker[Answer]):
    """A model that writes, in a worker process of its own."""

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
        super().__init__(model_id, worker, ready.max_sequences, settings)

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

        def submit(request: int) -> Submit:
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
            )

        with self._open(Answer(), submit) as answer:
            yield answer

    def _step(self, message: Stepped | Encoded) -> None:
        if isinstance(message, Stepped):
            for piece in message.pieces:
                self._hand_over(piece)

    def _hand_over(self, piece: Piece) -> None:
        answer = self._requests.get(piece.request)
        if answer is None:
            return  # cancelled meanwhile
        if not piece.finish:
            answer.push(piece)
            return
        del self._requests[piece.request]
        answer.push(piece)
        metrics.PROMPT_TOKENS.labels(self._model_id).inc(answer.prompt_tokens)
        metrics.CACHED_TOKENS.labels(self._model_id).inc(piece.cached_tokens)
        metrics.GENERATED_TOKENS.labels(self._model_id).inc(piece.completion_tokens)
