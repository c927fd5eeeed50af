"""The batch loop of an embedding model or reranker: batches of bounded size, filled by all requests in turn.

A large request never delays a small one: clients share a batch evenly, and so do the requests of a client. The loop
takes messages between two batches, so a cancelled request costs at most the running batch. Inputs are tokenized and
checked while batches run.
"""

from __future__ import annotations

import heapq
import math
import queue
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.text.engine.messages import (
    LEAST_INPUT_BYTES,
    MAX_EMBEDDED_TOKENS,
    USUAL_BYTES,
    Accepted,
    Counters,
    Embed,
    Embedded,
    Encoded,
    EncoderReady,
    Rank,
)
from services.text.engine.preparation import Preparing
from services.worker.loop import DEADLINE_PASSED, Pace, WorkerLoop, expired
from services.worker.messages import Cancel, EngineError, Phase, Stop

LEAST_TOKENS = 512  # of a batch: smaller batches are no faster, even on the slowest machine
QUEUE_TOKENS = 1_200_000  # four of the largest requests

Tokens = NDArray[np.int32]  # [tokens]; of a pair also [tokens, 2], with the segment of each token
Vectors = NDArray[np.float32]  # [inputs, dimensions]


class Encoder(Protocol):
    """A loaded embedding model. Another thread than the loop's may call `tokenize` during an `encode`."""

    ready: EncoderReady
    batch_inputs: int  # maximum inputs of one `encode`
    normalised: bool  # whether the loop normalises its vectors to length one

    def tokenize(self, text: str) -> Tokens:
        """Returns the token ids of an input, with the model's special tokens around it."""

    def encode(self, inputs: Sequence[Tokens]) -> Vectors:
        """Returns the pooled vectors of the inputs, in order, not normalised. No input exceeds the context."""


@dataclass(slots=True)
class EmbeddingJob:
    """A request whose inputs are tokenized and fit the model."""

    request: int
    client: str
    inputs: list[Tokens]
    dimensions: int  # 0: all
    left: list[int] = field(default_factory=list)  # indexes of inputs still to compute, the longest last
    computed: int = 0  # tokens
    deadline: float = math.inf  # on the monotonic clock; the caller has given up by then

    def __post_init__(self) -> None:
        """Sorts the inputs by length, because a batch is computed as wide as its longest input."""
        self.left = sorted(range(len(self.inputs)), key=lambda index: len(self.inputs[index]))

    @property
    def tokens_left(self) -> int:
        """Number of tokens still to compute."""
        return sum(len(self.inputs[index]) for index in self.left)


EmbeddingInbox = queue.SimpleQueue[EmbeddingJob | Cancel | Stop]


class EmbeddingLoop(WorkerLoop[EmbeddingJob | Cancel]):
    """The loop that runs an embedding model's requests. Another thread fills `inbox`; `send` gets Encoded and
    RequestRefused.
    """

    def __init__(
        self,
        encoder: Encoder,
        batch_tokens: int,
        inbox: EmbeddingInbox,
        send: Callable[[object], None],
        queue_tokens: int = 0,
    ) -> None:
        """`queue_tokens` limits all requests together, but never a single one; 0: QUEUE_TOKENS."""
        super().__init__(inbox, send)
        self._encoder = encoder
        self._queue_tokens = queue_tokens or QUEUE_TOKENS
        self._pace = Pace(min(LEAST_TOKENS, batch_tokens), batch_tokens)
        self._requests: list[EmbeddingJob] = []  # in order of arrival
        self._steps = 0
        self._batch = (0, 0)  # inputs and tokens of the last step
        self._reported: Counters | None = None

    def _is_idle(self) -> bool:
        return not self._requests

    def _advance(self) -> None:
        for request in expired(self._requests):
            self._requests.remove(request)
            self._refuse(request.request, DEADLINE_PASSED)
        batch = list(self._choose())
        vectors: list[Embedded] = []
        if batch:
            vectors = self._compute(batch)
            self._steps += 1
            self._requests = [request for request in self._requests if request.left]
        self._report(vectors)

    def _take(self, message: EmbeddingJob | Cancel) -> None:
        if isinstance(message, Cancel):
            self._requests = [one for one in self._requests if one.request != message.request]
        else:
            self._arrive(message)

    def _arrive(self, job: EmbeddingJob) -> None:
        queued = sum(one.tokens_left for one in self._requests)
        if queued and queued + job.tokens_left > self._queue_tokens:
            message = f"inputs of {queued} tokens wait, and at most {self._queue_tokens} may (ALLM_QUEUE_TOKENS)"
            self._refuse(job.request, EngineError("OVERLOADED", message))
            return
        self._requests.append(job)

    def _choose(self) -> Iterator[tuple[EmbeddingJob, int]]:
        """Chooses the next batch: requests and the indexes of their inputs. At least one input, however long it is.

        The next input comes from the client with the fewest tokens in this batch, and from that client's request with
        the fewest; the older one breaks a tie. Only the first input may be longer than a batch. It comes from the
        oldest request, and in every second batch from the request with the fewest computed tokens.
        """
        turns: dict[str, list[tuple[int, int, EmbeddingJob]]] = {}
        clients: list[tuple[int, int, str]] = []
        ahead = min(self._requests, key=lambda one: one.computed, default=None) if self._steps % 2 else None
        for order, request in enumerate(sorted(self._requests, key=lambda one: one is not ahead)):  # stable
            if request.client not in turns:
                turns[request.client] = []
                clients.append((0, order, request.client))
            turns[request.client].append((0, order, request))
        inputs, tokens = 0, 0
        while clients and inputs < self._encoder.batch_inputs:
            of_client, first, client = heapq.heappop(clients)
            of_request, order, request = heapq.heappop(turns[client])
            size = len(request.inputs[request.left[-1]])
            if not inputs or tokens + size <= self._pace.limit:
                yield request, request.left.pop()
                inputs, tokens, of_client = inputs + 1, tokens + size, of_client + size
                if request.left:
                    heapq.heappush(turns[client], (of_request + size, order, request))
            # Otherwise it waits for the next batch; the client's other requests may still fit into this one.
            if turns[client]:
                heapq.heappush(clients, (of_client, first, client))

    def _compute(self, batch: list[tuple[EmbeddingJob, int]]) -> list[Embedded]:
        started = time.monotonic()
        for request, index in batch:
            if not request.computed:
                self._phases.append(Phase(request.request, "embed", started))
            request.computed += len(request.inputs[index])
        vectors = self._encoder.encode([request.inputs[index] for request, index in batch])
        self._batch = len(batch), sum(len(request.inputs[index]) for request, index in batch)
        self._pace.took(self._batch[1], time.monotonic() - started)
        return [
            Embedded(request.request, index, _finished(vector, request.dimensions, self._encoder.normalised))
            for (request, index), vector in zip(batch, vectors, strict=True)
        ]

    def _report(self, vectors: list[Embedded]) -> None:
        running = sum(request.computed > 0 for request in self._requests)
        waiting = len(self._requests) - running
        counters = Counters(self._steps, running, waiting, 0, 0, 0, *self._batch)
        if vectors or counters != self._reported:
            self._send(Encoded(vectors, counters, self._phases))
            self._phases, self._reported = [], counters


def _finished(vector: Vectors, dimensions: int, normalised: bool) -> bytes:
    """Returns a vector as it is sent: cut to its first `dimensions` numbers, then normalised to length one."""
    cut = vector[:dimensions] if dimensions else vector
    if normalised:
        length = float(np.linalg.norm(cut))
        cut = cut / length if length else cut
    return cut.astype("<f4").tobytes()


def prepare(encoder: Encoder, embed: Embed, send: Callable[[object], None]) -> Preparing:
    """Tokenizes a request's inputs one by one. Sends a refusal immediately; never truncates an input silently."""
    return (yield from prepared_job(embed, _tokenized(encoder, embed), embed.dimensions, send))


def prepared_job(
    asked: Embed | Rank, tokenized: Generator[None, None, list[Tokens]], dimensions: int, send: Callable[[object], None]
) -> Preparing:
    """Runs the tokenizing of a request's inputs step by step. Sends Accepted, or the refusal, immediately."""
    try:
        inputs = yield from tokenized
    except EngineError as error:
        send(error.refusal(asked.request))
        return None
    send(Accepted(asked.request, sum(map(len, inputs))))
    deadline = math.inf if asked.deadline is None else asked.deadline
    return EmbeddingJob(asked.request, asked.client, inputs, dimensions, deadline=deadline)


def _tokenized(encoder: Encoder, embed: Embed) -> Generator[None, None, list[Tokens]]:
    inputs: list[Tokens] = []
    total, limit = 0, encoder.ready.context_tokens
    for index, content in enumerate(embed.inputs):
        name = embed.param.replace("[]", f"[{index}]")
        if index:
            yield
        if isinstance(content, str) and embed.truncate:
            tokens = _cut(encoder, content, limit)
        else:
            check_size(content, limit, name)
            tokens = encoder.tokenize(content) if isinstance(content, str) else _given(encoder, content, name)
        if not len(tokens):
            raise EngineError("INVALID_REQUEST", f"'{name}' has no tokens.", name)
        if len(tokens) > limit:
            message = (
                f"'{name}' has {len(tokens)} tokens, but this model takes at most {limit}; inputs are not truncated."
            )
            raise EngineError("CONTEXT_LENGTH_EXCEEDED", message, name)
        total += len(tokens)
        check_total(total, embed.param)
        inputs.append(tokens)
    return inputs


def _cut(encoder: Encoder, text: str, limit: int) -> Tokens:
    """Tokenizes a text, and drops tokens at its end that are too many. A special token after the text stays."""
    tokens = encoder.tokenize(text[: max(LEAST_INPUT_BYTES, limit * USUAL_BYTES)])  # bounds the work
    if len(tokens) <= limit:
        return tokens
    special = encoder.tokenize("")
    end = special[-1:] if len(special) and special[-1] == tokens[-1] else special[:0]
    return np.concatenate((tokens[: limit - len(end)], end))


def check_total(tokens: int, param: str) -> None:
    """Refuses a request with too many tokens; `param`: the name of an input, with `[]` for its index."""
    if tokens > MAX_EMBEDDED_TOKENS:
        param = param.removesuffix("[]")
        message = f"'{param}' has more than {MAX_EMBEDDED_TOKENS} tokens in all; send it as several requests."
        raise EngineError("INVALID_REQUEST", message, param)


def check_size(content: str | list[int], limit: int, name: str) -> None:
    """Refuses an input before it is tokenized if it is far too long: a megabyte takes seconds to tokenize."""
    if isinstance(content, str):
        size, most, unit = len(content.encode()), max(LEAST_INPUT_BYTES, limit * USUAL_BYTES), "bytes"
    else:
        size, most, unit = len(content), limit, "tokens"
    if size > most:
        message = f"'{name}' has {size} {unit}, but this model takes at most {limit} tokens; inputs are not truncated."
        raise EngineError("CONTEXT_LENGTH_EXCEEDED", message, name)


def _given(encoder: Encoder, tokens: list[int], name: str) -> Tokens:
    vocabulary = encoder.ready.vocabulary
    for token in tokens:
        if not 0 <= token < vocabulary:
            message = f"'{name}' contains token {token}; this model's tokens are 0 to {vocabulary - 1}."
            raise EngineError("INVALID_REQUEST", message, name)
    return np.array(tokens, np.int32)
