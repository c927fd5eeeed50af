"""The service's side of a loaded embedding model or reranker: sends requests and receives their results."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence

from services.auth.caller import current_caller
from services.errors import InvalidRequest
from services.rpc.deadline import caller_deadline
from services.settings.modality_settings import TextSettings
from services.telemetry import metrics
from services.telemetry.tracing import INPUT_TOKENS
from services.text.engine.messages import Embed, Embedded, Encoded, EncoderReady, FromWorker, Rank, Stepped
from services.text.loaded import PendingText, TextModelInWorker
from services.worker.process import WorkerProcess


class EmbeddingAnswer(PendingText):
    """The vectors or scores of one request, each little-endian float32."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self._vectors: list[bytes] = [b""] * inputs
        self._missing = inputs

    async def whole(self) -> list[bytes]:
        """Waits for all vectors and returns them in input order. Raises the error that ended the request."""
        while self._missing:
            await self._wait()
        return self._vectors

    @property
    def counts(self) -> Mapping[str, float]:
        """Token counts of the inputs."""
        return {INPUT_TOKENS: self.prompt_tokens}

    @property
    def computed(self) -> int:
        """An estimate of the tokens computed so far, which assumes inputs of equal length."""
        return math.ceil(self.prompt_tokens * (1 - self._missing / len(self._vectors)))

    def push(self, embedded: Embedded) -> None:
        """Adds a vector from the worker."""
        self._vectors[embedded.index] = embedded.vector
        self._missing -= 1
        if not self._missing:
            self.finish()
            self._notify()


class LoadedEncoder(TextModelInWorker[EmbeddingAnswer]):
    """An embedding model, or a reranker, in its worker process."""

    def __init__(
        self, model_id: str, worker: WorkerProcess[FromWorker], ready: EncoderReady, settings: TextSettings
    ) -> None:
        """Takes over a worker that has sent EncoderReady."""
        self.ready = ready
        super().__init__(model_id, worker, settings.max_sequences, settings)

    async def embed(
        self,
        client: str,
        inputs: Sequence[str | list[int]],
        dimensions: int = 0,
        param: str = "input[]",
        *,
        truncate: bool = False,
    ) -> tuple[list[bytes], int]:
        """Returns the vectors of the inputs, each little-endian float32, and the token count of the inputs.

        `dimensions`: the length to which vectors are truncated; 0: full length. `param`: the name of an input in
        errors, with `[]` for its index. `truncate`: whether texts that are too long are cut at their end. Cancelling
        the call cancels the request.

        Raises:
            InvalidRequest: vectors are shorter than `dimensions`, or an input does not fit the model.
            Overloaded: the queue is full.
        """
        if dimensions > self.ready.dimensions:
            raise InvalidRequest(
                f"'dimensions' is {dimensions}, but vectors of {self._model_id} have {self.ready.dimensions}.",
                param="dimensions",
            )

        deadline = caller_deadline()

        def embed(request: int) -> Embed:
            return Embed(
                request=request,
                client=client,
                inputs=list(inputs),
                dimensions=dimensions,
                param=param,
                deadline=deadline.at if deadline else None,
                truncate=truncate,
            )

        return await self._computed(len(inputs), embed)

    async def rank(
        self,
        client: str,
        queries: Sequence[str],
        documents: Sequence[str],
        document_tokens: int = 0,
        params: tuple[str, str] = ("query", "documents[]"),
    ) -> tuple[list[float], int]:
        """Returns the relevance of each document to its query, 0 to 1, and the token count of all pairs.

        `queries`: one for all documents, or one per document. `document_tokens`: the length to which documents are cut;
        0: not at all. `params`: the names of a query and of a document in errors, with `[]` for the index.

        Raises:
            InvalidRequest: a pair does not fit the model.
            Overloaded: the queue is full.
        """
        deadline = caller_deadline()

        def rank(request: int) -> Rank:
            return Rank(
                request=request,
                client=client,
                queries=list(queries),
                documents=list(documents),
                document_tokens=document_tokens,
                query_param=params[0],
                param=params[1],
                deadline=deadline.at if deadline else None,
            )

        scores, tokens = await self._computed(len(documents), rank)
        return array("f", b"".join(scores)).tolist(), tokens

    async def _computed(self, inputs: int, message: Callable[[int], Embed | Rank]) -> tuple[list[bytes], int]:
        """Sends a request of so many inputs; returns the float32 results and the token count."""
        with self._open(EmbeddingAnswer(inputs), message) as answer:
            try:
                return await answer.whole(), answer.prompt_tokens
            finally:
                current_caller().spend(answer.computed)

    def _step(self, message: Stepped | Encoded) -> None:
        if not isinstance(message, Encoded):
            return
        for embedded in message.vectors:
            answer = self._requests.get(embedded.request)
            if answer is None:
                continue  # cancelled in the meantime
            answer.push(embedded)
            if answer.finished:
                del self._requests[embedded.request]
                metrics.PROMPT_TOKENS.labels(self._model_id).inc(answer.prompt_tokens)
                labels = metrics.gen_ai(self._model_id, answer.operation)
                metrics.TOKEN_USAGE.labels(*labels, "input").observe(answer.prompt_tokens)
