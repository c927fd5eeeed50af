"""Continuous batching: one loop that serves all requests of a model, step by step.

Each turn takes what has arrived, admits what fits, computes one batch (a token for every decoding request beside chunks
of waiting prompts), emits the new tokens at once and retires what has ended. The loop owns fairness, prefix reuse, stop
conditions, cancellation and callers' deadlines; under it a runtime only steps sequences. Other time limits are the
service's.
"""

from __future__ import annotations

import dataclasses
import math
import queue
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.residency.messages import Cancel, EngineError, Phase, Refused, Stop
from services.residency.pace import Pace
from services.text.engine.cells import BLOCK, CellLedger
from services.text.engine.logprobs import HeldLogprobs
from services.text.engine.messages import Counters, FinishReason, Hold, Piece, Stepped
from services.text.engine.prefix_reuse import PrefixReuse
from services.text.engine.runtime import OutOfCells, Runtime, Sampled, Span
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence
from services.text.engine.state_reuse import StateReuse
from services.text.engine.text import TextAssembler


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


class BatchLoop:
    """Runs the requests of one loaded model. `inbox` is filled by another thread; `send` gets Stepped and Refused."""

    def __init__(
        self,
        runtime: Runtime,
        limits: BatchLimits,
        inbox: Inbox,
        send: Callable[[object], None],
        pace: Pace | None = None,
    ) -> None:
        """`pace` bounds the time of a step; None: steps are as large as `limits` say."""
        self._runtime = runtime
        self._limits = limits
        self._pace = pace or Pace(limits.batch_tokens, limits.batch_tokens)
        self._queue_tokens = limits.queue_tokens or QUEUED_CACHES * runtime.ready.kv_tokens
        self._inbox = inbox
        self._send = send
        self._ledger = CellLedger(runtime.ready.kv_tokens)
        reuse = StateReuse if runtime.reuses_states else PrefixReuse
        self._reuse = reuse(runtime, self._ledger, limits.max_sequences, limits.cached_cells)
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._pieces: list[Piece] = []
        self._phases: list[Phase] = []
        self._arrivals = 0
        self._turns: dict[str, int] = {}  # of each client that has requests: the last one that was admitted
        self._next_deadline = math.inf
        self._steps = 0
        self._batch = (0, 0)  # sequences and tokens of the last step
        self._preempted = 0
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
        self._admit()
        plan = self._make_room(self._plan())
        if plan:
            self._step(plan)
        self._report()
        return True

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
            sampler = self._runtime.sampler(params, arrival.tokens, arrival.constraint, arrival.logprobs)
        except EngineError as error:
            self._refuse(arrival.request, error)
            return
        prompt = len(arrival.tokens)
        context = self._runtime.ready.context_tokens
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
            self._runtime.free_sampler(sequence.sampler)
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

    # --- who runs

    def _admit(self) -> None:
        """Clients in turn, those with the fewest running requests first; of each its oldest request."""
        while sequence := self._next():
            while len(self._running) >= self._limits.max_sequences or not self._fits(sequence):
                held = next((each for each in self._running if each.held), None)
                if held is None:
                    return
                self._preempt(held)  # who does not read keeps nobody waiting
            self._waiting.remove(sequence)
            self._turns[sequence.client] = max(self._turns.values(), default=0) + 1
            if sequence.params.seed is not None and not self._running and self._runtime.shares_cells:
                # Sums over cells round by the order they lie in: a lone seeded request gets an empty cache each time.
                self._reuse.clear()
            self._reuse.place(sequence)
            self._running.append(sequence)
            self._enter(sequence, "prefill")

    def _next(self) -> Sequence | None:
        """Whose turn it is."""
        busy = Counter(sequence.client for sequence in self._running)
        return min(
            (each for each in self._waiting if not each.held),
            key=lambda each: (busy[each.client], self._turns.get(each.client, 0), each.arrival),
            default=None,
        )

    def _fits(self, sequence: Sequence) -> bool:
        """Whether there are cells for the prompt, beside what the running requests still have to compute."""
        if not self._running:
            return True
        claimed = sum(running.missing for running in self._running) + BLOCK * len(self._running)
        wanted = sequence.missing - self._reuse.shareable(sequence, self._running)
        return claimed + wanted + BLOCK <= self._ledger.free + self._ledger.cached

    # --- what a step computes

    def _plan(self) -> list[tuple[Sequence, int]]:
        """Sequences and how many tokens of each to compute: every decoding one, then prompts as the budget allows."""
        running = [sequence for sequence in self._running if not sequence.held]
        plan = [(sequence, 1) for sequence in running if sequence.decoding]
        prompts = [sequence for sequence in running if not sequence.decoding]
        if not prompts:
            return plan
        limits = self._limits
        most = min(limits.batch_tokens, max(self._pace.limit, len(plan) + 1))
        budget = min(limits.chunk_tokens, most - len(plan)) if plan else most
        plan.extend(self._share_out(prompts, budget))
        return plan

    def _share_out(self, prompts: list[Sequence], budget: int) -> list[tuple[Sequence, int]]:
        """Shortest prompts first, so that many get their first token soon; the oldest always gets a quarter."""
        oldest = min(prompts, key=lambda sequence: sequence.arrival)
        shares: dict[Sequence, int] = {}
        reserved = max(1, budget // 4)
        for sequence in sorted(prompts, key=lambda sequence: (sequence.missing, sequence.arrival)):
            available = budget if sequence is oldest else budget - min(reserved, oldest.missing)
            if available <= 0 or self._reuse.waits(sequence, [each for each in self._running if not each.held]):
                continue
            share = min(sequence.ahead, available)
            shares[sequence] = share
            budget -= share
            if sequence is oldest:
                reserved = 0
        return list(shares.items())

    def _make_room(self, plan: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Takes out of the plan what there are no cells for."""
        while sum(count for _, count in plan) > self._ledger.free:
            gone = self._relieve()
            plan = [(sequence, count) for sequence, count in plan if sequence is not gone]
        return plan

    def _relieve(self) -> Sequence | None:
        """Gives up cells: kept prefixes first, then the newest request, which starts over unless it is alone."""
        if self._reuse.evict():
            return None
        newest = max(self._running, key=lambda sequence: sequence.arrival)
        if len(self._running) > 1:
            self._preempt(newest)
            return newest
        self._retire(newest)
        message = f"the key-value cache has no cells left for a request of {len(newest.tokens)} tokens"
        self._send(Refused(request=newest.request, code="OUT_OF_MEMORY", message=message))
        return newest

    def _preempt(self, sequence: Sequence) -> None:
        """Gives up a running request's cells; it starts over, with what it has generated, when there is room."""
        self._preempted += 1
        self._running.remove(sequence)
        self._reuse.give_up(sequence)
        sequence.id, sequence.computed, sequence.begun = -1, 0, False
        sequence.marks.clear()
        self._waiting.append(sequence)
        self._enter(sequence, "queue")

    def _enter(self, sequence: Sequence, phase: str) -> None:
        """Tells, with the end of the next step, of what the service shows where a request's time went."""
        if sequence.phase != phase:
            sequence.phase = phase
            self._phases.append(Phase(sequence.request, phase, time.monotonic()))

    # --- the step and what comes out of it

    def _step(self, plan: list[tuple[Sequence, int]]) -> None:
        spans = []
        plan.sort(key=lambda item: item[0].id)
        for sequence, count in plan:
            tokens = sequence.tokens[sequence.computed : sequence.computed + count]
            whole = sequence.missing == count
            spans.append(Span(sequence.id, sequence.computed, tokens, sequence.sampler if whole else None))
        started = time.monotonic()
        try:
            sampled = self._runtime.step(spans)
        except OutOfCells:
            # The runtime has fewer cells than it said: now the ledger knows a better bound.
            self._ledger.total -= self._ledger.free - sum(count for _, count in plan) + 1
            self._relieve()
            return
        self._steps += 1
        self._batch = len(plan), sum(count for _, count in plan)
        self._pace.took(self._batch[1], time.monotonic() - started)
        for (sequence, count), outcome in zip(plan, sampled, strict=True):
            self._ledger.grow(sequence.holding, count)
            sequence.computed += count
            self._reuse.reached(sequence)
            if isinstance(outcome, EngineError):
                self._retire(sequence)
                self._refuse(sequence.request, outcome)
            elif outcome is not None:
                sequence.tokens.append(outcome.token)
                self._enter(sequence, "decode")
                self._emit(sequence, outcome)

    def _emit(self, sequence: Sequence, sampled: Sampled) -> None:
        finish: FinishReason | None = None
        if self._runtime.is_end(sampled.token) and not sequence.params.ignore_eos:
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
        piece = self._runtime.piece(sampled.token, sequence.special)
        if piece and sequence.logprobs and sampled.logprob:
            sequence.logprobs.add(sequence.text.decoded, sampled.logprob)
        return sequence.text.push(piece)

    def _retire(self, sequence: Sequence) -> None:
        """Ends a running request: its cells go at once, to the prefix cache or to whoever needs them."""
        self._running.remove(sequence)
        self._runtime.free_sampler(sequence.sampler)
        self._reuse.retire(sequence)
        self._forget(sequence.client)

    def _forget(self, client: str) -> None:
        """Of a client that has no requests any more, no turn is remembered."""
        if client in self._turns and all(each.client != client for each in (*self._running, *self._waiting)):
            del self._turns[client]

    def _report(self) -> None:
        counters = Counters(
            steps=self._steps,
            running=len(self._running),
            waiting=len(self._waiting),
            active_cells=self._ledger.active,
            cached_cells=self._ledger.cached,
            preempted=self._preempted,
            batch=self._batch[0],
            batch_tokens=self._batch[1],
        )
        if self._pieces or counters != self._reported:
            self._send(Stepped(self._pieces, counters, self._phases))
            self._pieces, self._phases, self._reported = [], [], counters
