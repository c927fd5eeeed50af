"""The batch loop of a text worker: continuous batching, one step at a time.

Each turn takes new messages, admits the requests that fit, computes one batch (a token of every decoding request and
chunks of prompts), emits the new tokens immediately and retires ended requests. The loop owns fairness, prefix reuse,
stop conditions, cancellation and callers' deadlines; request_loop.py has the part that all loops share. The runtime
only steps sequences. Other time limits belong to the service.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from services.text.engine.kv_cells import BLOCK, CellLedger
from services.text.engine.messages import Counters
from services.text.engine.prefix_reuse import PrefixReuse, StateReuse, StreamReuse
from services.text.engine.request_loop import BatchLimits, Inbox, RequestLoop
from services.text.engine.runtime import Outcomes, OutOfCells, Runtime, Scoring, TokenSpan
from services.text.engine.sequence import Sequence
from services.text.engine.speculation import Speculation, StepCosts
from services.text.engine.token_budget import EvenGaps, share_out
from services.worker.loop import Pace
from services.worker.messages import EngineError, RequestRefused

# A client that runs this many times as many requests as another leaves it half of the time.
HEAVY = 4
SLOW_TOKEN = 0.005  # seconds for finding a token within its grammar; ordinary grammars take 0.00005
SLOW_TOKENS = 0.1  # seconds for all slow tokens of a step


class BatchLoop(RequestLoop):
    """The batch loop of a loaded model. Another thread fills `inbox`; `send` gets Stepped and RequestRefused."""

    def __init__(
        self,
        runtime: Runtime,
        limits: BatchLimits,
        inbox: Inbox,
        send: Callable[[object], None],
        pace: Pace | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        """`pace` bounds the time of a step; None: only `limits` bound it. `costs` turn speculation on."""
        super().__init__(runtime, limits, inbox, send)
        self._runtime = runtime
        self._pace = pace or Pace(limits.batch_tokens, limits.batch_tokens)
        self._even = EvenGaps()
        self._ledger = CellLedger(runtime.ready.kv_tokens)
        sharing = StateReuse if runtime.reuses_states else PrefixReuse
        reuse = sharing if runtime.shares_cells else StreamReuse
        self._reuse = reuse(runtime, self._ledger, limits.max_sequences, limits.cached_cells)
        self._speculation = Speculation(runtime, costs, shared=limits.cached_cells > 0)
        self._steps = 0
        self._batch = (0, 0)  # sequences and tokens of the last step
        self._preempted = 0
        self._light = False  # whether the step is without heavy clients
        self._encoded: dict[str, int] = {}  # by client: the number of the last turn that encoded for it
        self._encodings = 0
        self._encoding = 0.0  # seconds of this turn's encoding
        self._owed = 0.0  # seconds of the last step with all clients that steps without heavy ones have not made up for

    def _compute(self) -> None:
        self._admit()
        running = self._participants()
        self._encode(running)
        plan = self._make_room(self._plan(running))
        if plan:
            self._step(plan, self._drafts(plan))

    # --- admission

    def _admit(self) -> None:
        """Admits requests: clients in turn, fewest running requests first; of each client the oldest request."""
        while sequence := self._next():
            while len(self._running) >= self._limits.max_sequences or not self._fits(sequence):
                gone = self._yielding(sequence)
                if gone is None:
                    return
                self._preempt(gone, keep=True)
            self._admitted(sequence)
            if sequence.params.seed is not None and not self._running and self._runtime.shares_cells:
                # Rounding of sums depends on the order of the cells: a lone seeded request gets an empty cache.
                self._reuse.clear()
            self._reuse.place(sequence)
            self._running.append(sequence)
            self._enter(sequence, "prefill")

    def _yielding(self, sequence: Sequence) -> Sequence | None:
        """Returns the running request that gives way to a new one: one whose caller does not read, or the newest of a
        client that is heavy even beside the new one's client with one request more.
        """
        held = next((each for each in self._running if each.held), None)
        if held or not self._running:
            return held
        counts = self._running_counts()
        newest = self._newest_of_most(counts)
        return newest if counts[newest.client] >= HEAVY * (counts[sequence.client] + 1) else None

    def _newest_of_most(self, counts: Counter[str]) -> Sequence:
        """Returns the newest running request of the client that runs most; `counts`: running requests by client."""
        return max(self._running, key=lambda sequence: (counts[sequence.client], sequence.arrival))

    def _fits(self, sequence: Sequence) -> bool:
        """Returns True if the prompt fits into the cells that the running requests leave for it."""
        if not self._running:
            return True
        claimed = sum(running.missing for running in self._running) + BLOCK * len(self._running)
        wanted = sequence.missing - self._reuse.shareable(sequence, self._running)
        return claimed + wanted + BLOCK <= self._ledger.free + self._ledger.cached

    # --- pictures

    def _encode(self, running: list[Sequence]) -> None:
        """Encodes one picture part that a prompt needs next: clients in turn, of each client the oldest request.

        Running answers wait for at most one part between two tokens. A part that the prefix cache has is not encoded.
        """
        self._encoding = 0.0
        prompts = [each for each in running if each.pictures and not each.decoding]
        begun = [each for each in prompts if not self._reuse.waits(each, running)]
        parts = [(each, part) for each in begun if (part := each.next_part) and part.embeddings is None]
        if not parts:
            return
        sequence, part = min(parts, key=lambda pair: (self._encoded.get(pair[0].client, 0), pair[0].arrival))
        self._encodings += 1
        clients = {each.client for each in prompts}
        self._encoded = {client: turn for client, turn in self._encoded.items() if client in clients}
        self._encoded[sequence.client] = self._encodings
        started = time.monotonic()
        try:
            self._runtime.encode(part)
        except EngineError as error:
            running.remove(sequence)
            self._retire(sequence)
            self._refuse(sequence.request, error)
        self._encoding = time.monotonic() - started

    # --- the plan of a step

    def _plan(self, running: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Returns (sequence, tokens to compute) pairs: all decoding sequences, then prompts as the budget allows."""
        plan = [(sequence, 1) for sequence in running if sequence.decoding]
        prompts = [sequence for sequence in running if not sequence.decoding and not sequence.unseen]
        if not prompts:
            return plan
        limits = self._limits
        most = min(limits.batch_tokens, max(self._pace.limit, len(plan) + 1))
        budget = min(self._even.limit, limits.chunk_tokens, most - len(plan)) if plan else most
        plan.extend(share_out(prompts, budget, lambda prompt: self._reuse.waits(prompt, running), self._steps))
        return plan

    def _participants(self) -> list[Sequence]:
        """Returns the requests of the next step: all, or without heavy clients as long as these owe the others time.

        A step takes as long as all its requests need. A client with one request beside another's thirty would get a
        thirtieth of the machine; with this it gets half. Requests whose tokens are slow to find take turns.
        """
        running = _in_turn([sequence for sequence in self._running if not sequence.held])
        counts = Counter(sequence.client for sequence in running)
        most = HEAVY * min(counts.values(), default=0)
        light = [sequence for sequence in running if counts[sequence.client] < most]
        self._light = self._owed > 0 and len(light) < len(running)
        return light if self._light else running

    def _make_room(self, plan: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Frees cells until the plan fits, and returns the plan without preempted sequences."""
        while sum(count for _, count in plan) > self._ledger.free:
            gone = self._relieve()
            plan = [(sequence, count) for sequence, count in plan if sequence is not gone]
        return plan

    def _relieve(self) -> Sequence | None:
        """Frees cells: cached prefixes first, then those of the newest request of the client that runs most. That
        request starts over.

        A request that runs alone is refused. Returns the request that lost its cells, if any.
        """
        if self._reuse.evict():
            return None
        newest = self._newest_of_most(self._running_counts())
        if len(self._running) > 1:
            self._preempt(newest)
            return newest
        self._retire(newest)
        message = f"the key-value cache has no cells left for a request of {len(newest.tokens)} tokens"
        self._send(RequestRefused(request=newest.request, code="OUT_OF_MEMORY", message=message))
        return newest

    def _preempt(self, sequence: Sequence, keep: bool = False) -> None:
        """Frees a running request's cells and requeues it. It starts over with the tokens it has generated.

        `keep`: its cells move to the prefix cache, so that it need not compute them again if they are still there.
        """
        self._preempted += 1
        self._running.remove(sequence)
        if keep:
            self._reuse.retire(sequence)
        else:
            self._reuse.release(sequence)
        sequence.id, sequence.computed, sequence.begun = -1, 0, False
        sequence.marks.clear()
        sequence.drop_embeddings()
        self._waiting.append(sequence)
        self._enter(sequence, "queue")

    # --- the step and its results

    def _drafts(self, plan: list[tuple[Sequence, int]]) -> dict[Sequence, list[int]]:
        """Returns guesses of the next tokens, if all sequences decode: a step with prompts is long enough as it is, and
        so is one with slow tokens.
        """
        decoding = [sequence for sequence, _ in plan if sequence.decoding and sequence.token_seconds <= SLOW_TOKEN]
        if len(decoding) < len(plan):
            return {}
        return self._speculation.draft(decoding, min(self._ledger.free, self._limits.batch_tokens) - len(plan))

    def _step(self, plan: list[tuple[Sequence, int]], drafts: dict[Sequence, list[int]]) -> None:
        spans = []
        plan.sort(key=lambda item: item[0].id)
        for sequence, count in plan:
            tokens = sequence.tokens[sequence.computed : sequence.computed + count]
            sampler = sequence.sampler if sequence.missing == count else None
            guesses = drafts.get(sequence, [])
            scoring = _scoring(sequence, count) if sequence.scoring else None
            span = TokenSpan(sequence.id, sequence.computed, tokens + guesses, sampler, len(guesses), scoring)
            if sequence.pictures:
                _show(sequence, span)
            spans.append(span)
        started = time.monotonic()
        try:
            sampled = self._runtime.step(spans)
        except OutOfCells:
            if drafts:
                self._step(plan, {})
                return
            # The runtime has fewer cells than it reported: lower the ledger's total.
            self._ledger.total -= self._ledger.free - sum(count for _, count in plan) + 1
            self._relieve()
            return
        self._steps += 1
        self._batch = len(plan), sum(len(span.tokens) for span in spans)
        seconds = time.monotonic() - started
        if all(sequence.decoding for sequence, _ in plan):
            self._speculation.took(len(plan), self._batch[1] - len(plan), seconds)
        together = seconds + self._encoding
        self._owed = self._owed - together if self._light else together
        self._pace.took(self._batch[1], seconds)
        if not drafts:
            answers = sum(sequence.decoding for sequence, _ in plan)
            self._even.took(answers, self._batch[1] - answers, seconds)
        for (sequence, count), span, outcomes in zip(plan, spans, sampled, strict=True):
            if span.scoring:
                self._score(sequence, span.start + 1, span.scoring.found)
            self._computed(sequence, count)
            self._take_outcomes(sequence, outcomes, span.drafts)

    def _computed(self, sequence: Sequence, count: int) -> None:
        self._ledger.grow(sequence.holding, count)
        sequence.computed += count
        sequence.drop_embeddings(sequence.computed)
        self._reuse.reached(sequence)

    def _take_outcomes(self, sequence: Sequence, outcomes: Outcomes, drafts: int) -> None:
        """Emits a sequence's next tokens: every one but the first confirms a guess, whose cell is then computed."""
        self._speculation.record(sequence, drafts)
        for place, outcome in enumerate(outcomes):
            if place:
                self._computed(sequence, 1)
                self._speculation.accept(sequence)
            if isinstance(outcome, EngineError):
                self._retire(sequence)
                self._refuse(sequence.request, outcome)
                return
            sequence.tokens.append(outcome.token)
            self._enter(sequence, "decode")
            if self._emit(sequence, outcome):
                return
        if drafts and len(outcomes) <= drafts:
            self._runtime.drop(sequence.id, sequence.computed)

    def _free(self, sequence: Sequence) -> None:
        self._speculation.ended(sequence)
        self._reuse.retire(sequence)

    def _counters(self) -> Counters:
        return Counters(
            steps=self._steps,
            running=len(self._running),
            waiting=len(self._waiting),
            active_cells=self._ledger.active,
            cached_cells=self._ledger.cached,
            preempted=self._preempted,
            batch=self._batch[0],
            batch_tokens=self._batch[1],
            drafted=self._speculation.drafted,
            accepted=self._speculation.accepted,
        )


def _show(sequence: Sequence, span: TokenSpan) -> None:
    """Adds the embeddings of a span of a picture part, and the shift of its positions."""
    span.shift = sequence.shift(span.start)
    part = sequence.next_part
    if part and part.start <= span.start and part.embeddings is not None:
        place = span.start - part.start
        span.part, span.embeddings = part, part.embeddings[place : place + len(span.tokens)]


def _scoring(sequence: Sequence, count: int) -> Scoring:
    """Returns the tokens of a prompt whose logprobs the next `count` tokens give."""
    start = sequence.computed + 1
    end = min(start + count, sequence.prompt_tokens)
    return Scoring(sequence.tokens[start:end], sequence.logprobs or 0)


def _in_turn(running: list[Sequence]) -> list[Sequence]:
    """Returns the requests without the slow ones for whose tokens a step has no time: the last to have had a turn."""
    seconds, late = 0.0, []
    slow = [each for each in running if each.token_seconds > SLOW_TOKEN]
    for sequence in sorted(slow, key=lambda each: each.token_found):
        if seconds and seconds + sequence.token_seconds > SLOW_TOKENS:
            late.append(sequence)
        else:
            seconds += sequence.token_seconds
    return [sequence for sequence in running if sequence not in late]
