"""The common base of all loops that serve a model's requests: admission order, output and end of answers.

The subclasses compute: BatchLoop, and VllmLoop of the vllm runtime.
"""

from __future__ import annotations

import dataclasses
import math
import queue
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Any, Protocol

from services.text.engine.logprobs import HeldLogprobs
from services.text.engine.messages import Counters, FinishReason, Hold, Piece, Ready, Stepped
from services.text.engine.runtime import Sampled
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence
from services.text.engine.text import TextAssembler
from services.worker.messages import Cancel, EngineError, Phase, Refused, Stop


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request whose prompt is tokenized and fits the context."""

    request: int
    client: str
    tokens: list[int]
    params: SamplingParams
    constraint: Any | None = None  # from `Runtime.constraint`
    logprobs: int | None = None
    special: bool = False
    cache_key: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of the loop, all in requests or tokens."""

    max_sequences: int  # requests that run at the same time
    batch_tokens: int  # tokens computed in one step
    chunk_tokens: int  # prompt tokens in a step that also decodes
    cached_cells: int  # cells that the prefix cache may hold; 0 switches it off
    queue_tokens: int = 0  # of all waiting prompts together; 0: QUEUED_CACHES times the cache


QUEUED_CACHES = 16
Inbox = queue.SimpleQueue[Arrival | Hold | Cancel | Stop]


class Speaker(Protocol):
    """The part of a model that every loop needs: the text and the sampling of tokens. `Runtime` includes all of it."""

    ready: Ready

    def piece(self, token: int, special: bool) -> bytes:
        """Returns the bytes that a token adds to the text: a control token's name if `special`, nothing for an end."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends the model's turn."""

    def sampler(self, params: SamplingParams, prompt: Tokens[int], constraint: Any | None, logprobs: int | None) -> Any:
        """Returns the sampler of one request. Raises EngineError (INVALID_REQUEST) for unsupported parameters."""

    def free_sampler(self, sampler: Any) -> None:
        """Frees a sampler."""


class RequestLoop(ABC):
    """The loop that runs a loaded model's requests. Another thread fills `inbox`; `send` gets Stepped and Refused."""

    def __init__(self, speaker: Speaker, limits: BatchLimits, inbox: Inbox, send: Callable[[object], None]) -> None:
        self._speaker = speaker
        self._limits = limits
        self._queue_tokens = limits.queue_tokens or QUEUED_CACHES * speaker.ready.kv_tokens
        self._inbox = inbox
        self._send = send
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._pieces: list[Piece] = []
        self._phases: list[Phase] = []
        self._arrivals = 0
        self._turns: dict[str, int] = {}  # last admission of each client that has requests
        self._next_deadline = math.inf
        self._reported: Counters | None = None

    def run(self) -> None:
        """Serves until a Stop arrives."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Runs one turn of the loop, with at most one step. Waits for a message if no request can run."""
        if not self._take_messages():
            return False
        self._expire()
        self._advance()
        self._report()
        return True

    @abstractmethod
    def _advance(self) -> None:
        """Admits requests, computes a step if any request runs, and emits its tokens."""

    @abstractmethod
    def _give_up(self, sequence: Sequence) -> None:
        """Frees the resources of a running request that has ended."""

    @abstractmethod
    def _counters(self) -> Counters:
        """Returns the counters after a step."""

    # --- incoming messages

    def _take_messages(self) -> bool:
        wait = all(sequence.held for sequence in (*self._running, *self._waiting))
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if isinstance(message, Stop):
                return False
            if isinstance(message, Cancel):
                self._cancel(message.request)
            elif isinstance(message, Hold):
                self._hold(message)
            else:
                self._arrive(message)

    def _arrive(self, arrival: Arrival) -> None:
        params = arrival.params
        queued = sum(sequence.missing for sequence in self._waiting)
        if queued and queued + len(arrival.tokens) > self._queue_tokens:
            message = f"prompts of {queued} tokens wait, and at most {self._queue_tokens} may (ALLM_QUEUE_TOKENS)"
            self._refuse(arrival.request, EngineError("OVERLOADED", message))
            return
        if arrival.constraint is not None:
            # Only the grammar ends the answer: cut elsewhere, it would not parse.
            params = dataclasses.replace(params, stop=(), ignore_eos=False)
        try:
            sampler = self._speaker.sampler(params, arrival.tokens, arrival.constraint, arrival.logprobs)
        except EngineError as error:
            self._refuse(arrival.request, error)
            return
        prompt = len(arrival.tokens)
        context = self._speaker.ready.context_tokens
        deadline = math.inf if arrival.deadline is None else arrival.deadline
        self._next_deadline = min(self._next_deadline, deadline)
        self._arrivals += 1
        self._waiting.append(
            Sequence(
                request=arrival.request,
                client=arrival.client,
                tokens=arrival.tokens,
                prompt_tokens=prompt,
                last_token=min(context, prompt + params.max_tokens) if params.max_tokens else context,
                params=params,
                sampler=sampler,
                text=TextAssembler(params.stop),
                logprobs=None if arrival.logprobs is None else HeldLogprobs(),
                special=arrival.special,
                cache_key=arrival.cache_key,
                arrival=self._arrivals,
                deadline=deadline,
            )
        )

    def _cancel(self, request: int) -> None:
        for sequence in (*self._running, *self._waiting):
            if sequence.request == request:
                self._drop(sequence)
                return

    def _drop(self, sequence: Sequence) -> None:
        """Ends a request without finishing its answer."""
        if sequence in self._running:
            self._retire(sequence)
        else:
            self._waiting.remove(sequence)
            self._speaker.free_sampler(sequence.sampler)
            self._forget(sequence.client)

    def _hold(self, message: Hold) -> None:
        for sequence in (*self._running, *self._waiting):
            if sequence.request == message.request:
                sequence.held = message.held

    def _expire(self) -> None:
        """Ends the requests whose deadline has passed, both running and waiting ones."""
        now = time.monotonic()
        if now < self._next_deadline:
            return
        for sequence in [each for each in (*self._running, *self._waiting) if each.deadline <= now]:
            self._drop(sequence)
            self._refuse(sequence.request, EngineError("TIMEOUT", "the caller's deadline has passed"))
        self._next_deadline = min((each.deadline for each in (*self._running, *self._waiting)), default=math.inf)

    def _refuse(self, request: int, error: EngineError) -> None:
        self._send(Refused(request=request, code=error.code, message=error.message, param=error.param))

    # --- admission order

    def _next(self) -> Sequence | None:
        """Returns the next request to admit: of the client with the fewest running requests, then the oldest turn."""
        busy = Counter(sequence.client for sequence in self._running)
        return min(
            (each for each in self._waiting if not each.held),
            key=lambda each: (busy[each.client], self._turns.get(each.client, 0), each.arrival),
            default=None,
        )

    def _admitted(self, sequence: Sequence) -> None:
        """Takes a request off the queue and moves its client to the end of the turn order."""
        self._waiting.remove(sequence)
        self._turns[sequence.client] = max(self._turns.values(), default=0) + 1

    def _forget(self, client: str) -> None:
        """Drops the turn of a client that has no requests left."""
        if client in self._turns and all(each.client != client for each in (*self._running, *self._waiting)):
            del self._turns[client]

    def _enter(self, sequence: Sequence, phase: str, at: float | None = None) -> None:
        """Records that a request enters a phase, for the service's timings; sent with the next report.

        `at` is a time of the monotonic clock; None: now.
        """
        if sequence.phase != phase:
            sequence.phase = phase
            self._phases.append(Phase(sequence.request, phase, time.monotonic() if at is None else at))

    # --- outgoing messages

    def _emit(self, sequence: Sequence, sampled: Sampled) -> None:
        finish: FinishReason | None = None
        if self._speaker.is_end(sampled.token) and not sequence.params.ignore_eos:
            finish, text = "stop", sequence.text.flush()
        else:
            text = self._push(sequence, sampled)
            if sequence.text.stopped or sampled.complete:
                finish = "stop"
            elif len(sequence.tokens) >= sequence.last_token:
                finish, text = "length", text + sequence.text.flush()
        if text or finish:
            logprobs = sequence.logprobs.take(sequence.text.shown) if sequence.logprobs else None
            self._pieces.append(Piece(sequence.request, text, finish, sequence.generated, sequence.cached, logprobs))
        if finish:
            self._retire(sequence)

    def _push(self, sequence: Sequence, sampled: Sampled) -> str:
        """Adds a token's text, and its logprob if the token has text. Returns the text that may be shown."""
        piece = self._speaker.piece(sampled.token, sequence.special)
        if piece and sequence.logprobs and sampled.logprob:
            sequence.logprobs.add(sequence.text.decoded, sampled.logprob)
        return sequence.text.push(piece)

    def _retire(self, sequence: Sequence) -> None:
        """Ends a running request and frees its resources immediately."""
        self._running.remove(sequence)
        self._speaker.free_sampler(sequence.sampler)
        self._give_up(sequence)
        self._forget(sequence.client)

    def _report(self) -> None:
        counters = self._counters()
        if self._pieces or counters != self._reported:
            self._send(Stepped(self._pieces, counters, self._phases))
            self._pieces, self._phases, self._reported = [], [], counters
