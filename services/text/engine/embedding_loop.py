"""The batch loop of an embedding worker: batches of bounded size, filled by all requests in turn.

A large request never delays a small one: clients share a batch evenly, and so do the requests of a client. The loop
takes messages between two batches, so a cancelled request costs at most the running batch.
"""

from __future__ import annotations

import heapq
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from services.text.engine.encoder import Encoder, Tokens, Vectors
from services.text.engine.messages import Counters, Embedded, Encoded
from services.worker.messages import Cancel, Phase, Refused, Stop
from services.worker.pace import Pace

LEAST_TOKENS = 512  # of a batch: smaller batches are no faster, even on the slowest machine
QUEUE_TOKENS = 1_200_000  # four of the largest requests


@dataclass(slots=True)
class EmbeddingArrival:
    """A request whose inputs are tokenized and fit the model."""

    request: int
    client: str
    inputs: list[Tokens]
    dimensions: int  # 0: all
    left: list[int] = field(default_factory=list)  # indexes of inputs still to compute, the longest last
    computed: int = 0  # tokens
    deadline: float | None = None  # on the monotonic clock; the caller has given up by then

    def __post_init__(self) -> None:
        """Sorts the inputs by length, because a batch is computed as wide as its longest input."""
        self.left = sorted(range(len(self.inputs)), key=lambda index: len(self.inputs[index]))

    @property
    def tokens_left(self) -> int:
        """Number of tokens still to compute."""
        return sum(len(self.inputs[index]) for index in self.left)


EmbeddingInbox = queue.SimpleQueue[EmbeddingArrival | Cancel | Stop]


class EmbeddingLoop:
    """The loop that runs an embedding model's requests. Another thread fills `inbox`; `send` gets Encoded, Refused."""

    def __init__(
        self,
        encoder: Encoder,
        batch_tokens: int,
        inbox: EmbeddingInbox,
        send: Callable[[object], None],
        queue_tokens: int = 0,
    ) -> None:
        """`queue_tokens` limits all requests together, but never a single one; 0: QUEUE_TOKENS."""
        self._encoder = encoder
        self._batch_tokens = batch_tokens
        self._queue_tokens = queue_tokens or QUEUE_TOKENS
        self._pace = Pace(min(LEAST_TOKENS, batch_tokens), batch_tokens)
        self._inbox = inbox
        self._send = send
        self._requests: list[EmbeddingArrival] = []  # in order of arrival
        self._steps = 0
        self._batch = (0, 0)  # inputs and tokens of the last step
        self._reported: Counters | None = None
        self._phases: list[Phase] = []

    def run(self) -> None:
        """Serves until a Stop arrives."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Runs one turn of the loop, with at most one batch. Waits for a message if there are no requests."""
        if not self._take_messages():
            return False
        self._expire()
        batch = list(self._choose())
        vectors: list[Embedded] = []
        if batch:
            vectors = self._compute(batch)
            self._steps += 1
            self._requests = [request for request in self._requests if request.left]
        self._report(vectors)
        return True

    def _take_messages(self) -> bool:
        wait = not self._requests
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if isinstance(message, Stop):
                return False
            if isinstance(message, Cancel):
                self._requests = [one for one in self._requests if one.request != message.request]
            else:
                self._arrive(message)

    def _arrive(self, arrival: EmbeddingArrival) -> None:
        there = sum(one.tokens_left for one in self._requests)
        if there and there + arrival.tokens_left > self._queue_tokens:
            message = f"inputs of {there} tokens wait, and at most {self._queue_tokens} may (ALLM_QUEUE_TOKENS)"
            self._send(Refused(request=arrival.request, code="OVERLOADED", message=message))
            return
        self._requests.append(arrival)

    def _expire(self) -> None:
        """Ends the requests whose deadline has passed."""
        now = time.monotonic()
        late = [one for one in self._requests if one.deadline is not None and one.deadline <= now]
        for request in late:
            self._requests.remove(request)
            self._send(Refused(request=request.request, code="TIMEOUT", message="the caller's deadline has passed"))

    def _choose(self) -> Iterator[tuple[EmbeddingArrival, int]]:
        """Chooses the next batch: requests and the indexes of their inputs. At least one input, however long it is.

        The next input comes from the client with the fewest tokens in this batch, and from that client's request with
        the fewest; the older one breaks a tie. Only the first input may be longer than a batch. It comes from the
        oldest request, and in every second batch from the request with the fewest computed tokens.
        """
        turns: dict[str, list[tuple[int, int, EmbeddingArrival]]] = {}
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

    def _compute(self, batch: list[tuple[EmbeddingArrival, int]]) -> list[Embedded]:
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
    told = vector[:dimensions] if dimensions else vector
    if normalised:
        length = float(np.linalg.norm(told))
        told = told / length if length else told
    return told.astype("<f4").tobytes()
