"""What every loop that serves a model's requests does alike: who may run next, what is told of the answers, and when
they end. What computes is the business of those that go on from here: BatchLoop, and that of the vllm runtime.
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
    constraint: Any | None = None  # what `Runtime.constraint` made of the grammar
    logprobs: int | None = None
    special: bool = False
    cache_key: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of the loop, all in requests or tokens."""

    max_sequences: int  # requests that run at the same time
    batch_tokens: int  # tokens computed in one step
    chunk_tokens: int  # prompt tokens in a step in which other requests decode
    cached_cells: int  # cells that the prefix cache may hold; 0 switches it off
    queue_tokens: int = 0  # of prompts that may wait together; 0: QUEUED_CACHES times the cache


QUEUED_CACHES = 16
Inbox = queue.SimpleQueue[Arrival | Hold | Cancel | Stop]


class Speaker(Protocol):
    """What the loop asks of a model: of which tokens its answers are. All of it is in `Runtime`, too."""

    ready: Ready

    def piece(self, token: int, special: bool) -> bytes:
        """The bytes that a token adds to the text; a control token adds its name if `special`, but an end never."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends the model's turn."""

    def sampler(self, params: SamplingParams, prompt: Tokens[int], constraint: Any | None, logprobs: int | None) -> Any:
        """What chooses the tokens of one request. Raises EngineError (INVALID_REQUEST) for what cannot be done."""

    def free_sampler(self, sampler: Any) -> None:
        """Gives up what `sampler` made."""


class RequestLoop(ABC):
    """Runs the requests of one loaded model. `inbox` is filled by another thread; `send` gets Stepped and Refused."""

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
        self._turns: dict[str, int] = {}  # of each client that has requests: the last one that was admitted
        self._next_deadline = math.inf
        self._reported: Counters | None = None

    def run(self) -> None:
        """Serves until a Stop arrives."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """One turn of the loop, at most one step; waits for a message when there is nothing to do."""
        if not self._take_messages():
            return False
        self._expire()
        self._advance()
        self._report()
        return True

    @abstractmethod
    def _advance(self) -> None:
        """Admits who may run, computes a step if there is any, and emits what came out of it."""

    @abstractmethod
    def _give_up(self, sequence: Sequence) -> None:
        """Gives up what a request that has run holds, now that it has ended."""

    @abstractmethod
    def _counters(self) -> Counters:
        """What there is to count after a step."""

    # --- what comes in

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
            # The grammar alone says where the answer may end: cut elsewhere, it would not parse.
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
        """Ends a request whose rest nobody wants."""
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
        """Ends the requests whose callers do not wait any more; those that have not begun never begin."""
        now = time.monotonic()
        if now < self._next_deadline:
            return
        for sequence in [each for each in (*self._running, *self._waiting) if each.deadline <= now]:
            self._drop(sequence)
            self._refuse(sequence.request, EngineError("TIMEOUT", "the caller's deadline has passed"))
        self._next_deadline = min((each.deadline for each in (*self._running, *self._waiting)), default=math.inf)

    def _refuse(self, request: int, error: EngineError) -> None:
        self._send(Refused(request=request, code=error.code, message=error.message, param=error.param))

    # --- whose turn it is

    def _next(self) -> Sequence | None:
        """Whose turn it is."""
        busy = Counter(sequence.client for sequence in self._running)
        return min(
            (each for each in self._waiting if not each.held),
            key=lambda each: (busy[each.client], self._turns.get(each.client, 0), each.arrival),
            default=None,
        )

    def _admitted(self, sequence: Sequence) -> None:
        """A request does not wait any more: its client's next one has its turn after the others'."""
        self._waiting.remove(sequence)
        self._turns[sequence.client] = max(self._turns.values(), default=0) + 1

    def _forget(self, client: str) -> None:
        """Of a client that has no requests any more, no turn is remembered."""
        if client in self._turns and all(each.client != client for each in (*self._running, *self._waiting)):
            del self._turns[client]

    def _enter(self, sequence: Sequence, phase: str, at: float | None = None) -> None:
        """Tells, with the end of the next step, of what the service shows where a request's time went. `at`: when, on
        the monotonic clock; None: now.
        """
        if sequence.phase != phase:
            sequence.phase = phase
            self._phases.append(Phase(sequence.request, phase, time.monotonic() if at is None else at))

    # --- what goes out

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
        """Takes a token's text, and its logprob if the token has any text; returns what may be shown."""
        piece = self._speaker.piece(sampled.token, sequence.special)
        if piece and sequence.logprobs and sampled.logprob:
            sequence.logprobs.add(sequence.text.decoded, sampled.logprob)
        return sequence.text.push(piece)

    def _retire(self, sequence: Sequence) -> None:
        """Ends a running request: what it holds goes at once to whoever needs it."""
        self._running.remove(sequence)
        self._speaker.free_sampler(sequence.sampler)
        self._give_up(sequence)
        self._forget(sequence.client)

    def _report(self) -> None:
        counters = self._counters()
        if self._pieces or counters != self._reported:
            self._send(Stepped(self._pieces, counters, self._phases))
            self._pieces, self._phases, self._reported = [], [], counters
