"""The common base of all loops that serve a model's requests: admission order, output and end of answers.

The subclasses compute: BatchLoop, and VllmLoop of the vllm runtime.
"""

from __future__ import annotations

import math
import queue
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Any, Protocol

from services.text.engine.messages import Counters, DecoderReady, FinishReason, Hold, Piece, Stepped, TokenLogprob
from services.text.engine.runtime import Sampled
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence
from services.text.engine.token_budget import MOST_SCORED
from services.worker.loop import DEADLINE_PASSED, WorkerLoop, expired
from services.worker.messages import Cancel, EngineError, Phase, Stop

QUEUED_CACHES = 16
Inbox = queue.SimpleQueue[Sequence | Hold | Cancel | Stop]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of the loop, all in requests or tokens."""

    max_sequences: int  # requests that run at the same time
    batch_tokens: int  # tokens computed in one step
    chunk_tokens: int  # prompt tokens in a step that also decodes
    cached_cells: int  # cells that the prefix cache may hold; 0 switches it off
    queue_tokens: int = 0  # of all waiting prompts together; 0: QUEUED_CACHES times the cache


class Speaker(Protocol):
    """The part of a model that every loop needs: the text and the sampling of tokens. `Runtime` includes all of it."""

    ready: DecoderReady

    def piece(self, token: int, special: bool) -> bytes:
        """Returns the bytes that a token adds to the text: a control token's name if `special`, nothing for an end."""

    def name(self, token: int) -> bytes:
        """Returns the bytes of a token, as logprobs show it: ends and control tokens by name."""

    def is_end(self, token: int) -> bool:
        """Returns True if the token ends the model's turn."""

    def sampler(self, params: SamplingParams, prompt: Tokens[int], constraint: Any | None, logprobs: int | None) -> Any:
        """Returns the sampler of one request, whose `prompt` is without pictures.

        Raises EngineError (INVALID_REQUEST) for unsupported parameters.
        """

    def free_sampler(self, sampler: Any) -> None:
        """Frees a sampler."""


class RequestLoop(WorkerLoop[Sequence | Hold | Cancel]):
    """The loop that runs a loaded model's requests. Another thread fills `inbox`; `send` gets Stepped and
    RequestRefused.
    """

    def __init__(self, speaker: Speaker, limits: BatchLimits, inbox: Inbox, send: Callable[[object], None]) -> None:
        super().__init__(inbox, send)
        self._speaker = speaker
        self._limits = limits
        self._queue_tokens = limits.queue_tokens or QUEUED_CACHES * speaker.ready.kv_tokens
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._pieces: list[Piece] = []
        self._arrivals = 0
        self._next_deadline = math.inf  # the earliest of all requests, or an ended request's earlier one
        self._turns: dict[str, int] = {}  # last admission of each client that has requests
        self._reported: Counters | None = None

    def _is_idle(self) -> bool:
        return all(sequence.held for sequence in (*self._running, *self._waiting))

    def _advance(self) -> None:
        if time.monotonic() >= self._next_deadline:
            self._expire()
        self._compute()
        self._report()

    def _expire(self) -> None:
        """Refuses the requests whose deadlines have passed."""
        for sequence in expired((*self._running, *self._waiting)):
            self._drop(sequence)
            self._refuse(sequence.request, DEADLINE_PASSED)
        self._next_deadline = min((each.deadline for each in (*self._running, *self._waiting)), default=math.inf)

    @abstractmethod
    def _compute(self) -> None:
        """Admits requests, computes a step if any request runs, and emits its tokens."""

    @abstractmethod
    def _free(self, sequence: Sequence) -> None:
        """Frees the resources of a running request that has ended."""

    @abstractmethod
    def _counters(self) -> Counters:
        """Returns the counters after a step."""

    # --- incoming messages

    def _take(self, message: Sequence | Hold | Cancel) -> None:
        if isinstance(message, Cancel):
            self._cancel(message.request)
        elif isinstance(message, Hold):
            self._hold(message)
        else:
            self._arrive(message)

    def _arrive(self, sequence: Sequence) -> None:
        queued = sum(waiting.missing for waiting in self._waiting)
        if queued and queued + sequence.missing > self._queue_tokens:
            message = f"prompts of {queued} tokens wait, and at most {self._queue_tokens} may (ALLM_QUEUE_TOKENS)"
            self._refuse(sequence.request, EngineError("OVERLOADED", message))
            return
        params = sequence.params
        try:
            words = [token for token in sequence.tokens if token >= 0] if sequence.pictures else sequence.tokens
            sampler = self._speaker.sampler(params, words, sequence.constraint, sequence.logprobs)
        except EngineError as error:
            self._refuse(sequence.request, error)
            return
        context = self._speaker.ready.context_tokens
        sequence.sampler = sampler
        sequence.last_token = min(context, sequence.prompt_tokens + params.max_tokens) if params.max_tokens else context
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._waiting.append(sequence)
        self._next_deadline = min(self._next_deadline, sequence.deadline)

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

    # --- admission order

    def _next(self) -> Sequence | None:
        """Returns the next request to admit: of the client with the fewest running requests, then the oldest turn."""
        busy = self._running_counts()
        return min(
            (each for each in self._waiting if not each.held),
            key=lambda each: (busy[each.client], self._turns.get(each.client, 0), each.arrival),
            default=None,
        )

    def _running_counts(self) -> Counter[str]:
        """Returns the number of running requests of each client that has any."""
        return Counter(sequence.client for sequence in self._running)

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

    def _emit(self, sequence: Sequence, sampled: Sampled) -> bool:
        """Sends the text of a sequence's newest token. Returns True if the answer has ended with it."""
        finish: FinishReason | None = None
        params = sequence.params
        ends = self._speaker.is_end(sampled.token) and not params.ignore_eos
        if ends or sampled.token in params.stop_token_ids:
            if sequence.scored:
                self._push_logprob(sequence, sampled)
            finish, text = "stop", sequence.text.flush()
        else:
            text = self._push(sequence, sampled)
            if sequence.text.stopped or sampled.complete:
                finish = "stop"
            elif len(sequence.tokens) >= sequence.last_token:
                finish, text = "length", text + sequence.text.flush()
        if text or finish:
            # The logprobs of a scored request are one for each token, even if a token has no text.
            shown = None if finish and sequence.scored and not sequence.text.stopped else sequence.text.shown
            logprobs = sequence.held_logprobs.take(shown) if sequence.held_logprobs else None
            self._pieces.append(
                Piece(
                    sequence.request,
                    text,
                    finish,
                    sequence.generated,
                    sequence.cached,
                    logprobs,
                    sequence.accepted,
                    sequence.drafted - sequence.accepted,
                    stop=sequence.text.stopped,
                )
            )
        if finish:
            self._retire(sequence)
        return finish is not None

    def _push(self, sequence: Sequence, sampled: Sampled) -> str:
        """Adds a token's text, and its logprob if the token has text. Returns the text that may be shown."""
        piece = self._speaker.piece(sampled.token, sequence.special)
        if piece or sequence.scored:
            self._push_logprob(sequence, sampled)
        return sequence.text.push(piece, stops=sequence.generated > sequence.params.min_tokens)

    def _push_logprob(self, sequence: Sequence, sampled: Sampled) -> None:
        if sequence.held_logprobs and sampled.logprob:
            sequence.held_logprobs.add(sequence.text.decoded, sampled.logprob)

    def _score(self, sequence: Sequence, start: int, found: Tokens[TokenLogprob]) -> None:
        """Sends the logprobs of a prompt's tokens from position `start` on, apart from those that were sent before."""
        new = list(found[max(0, sequence.scores - start) :])
        if not sequence.scores:
            new.insert(0, TokenLogprob(self._speaker.name(sequence.tokens[0]), 0.0, []))
        sequence.scores += len(new)
        for at in range(0, len(new), MOST_SCORED):
            self._pieces.append(Piece(sequence.request, "", None, 0, 0, prompt_logprobs=new[at : at + MOST_SCORED]))

    def _retire(self, sequence: Sequence) -> None:
        """Ends a running request and frees its resources immediately."""
        self._running.remove(sequence)
        self._speaker.free_sampler(sequence.sampler)
        self._free(sequence)
        self._forget(sequence.client)

    def _report(self) -> None:
        counters = self._counters()
        if self._pieces or counters != self._reported:
            self._send(Stepped(self._pieces, counters, self._phases))
            self._pieces, self._phases, self._reported = [], [], counters
