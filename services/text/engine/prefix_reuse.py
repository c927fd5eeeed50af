"""Prefix reuse between requests, and the assignment of the runtime's sequence ids.

A request can reuse any whole blocks of a prefix, from entries of the prefix cache and from running requests. For
runtimes that can only copy whole sequences, `StateReuse` replaces this: requests of a recurrent model reuse whole
states, each after exactly its tokens. Such a state can be copied, but neither shared in part nor cut, so it must be
kept at positions that a later prompt will pass:

- at the end of a request. The next turn of a chat continues there if it spells the answer as it was generated.
- a little before the end of a prompt. Once an answer is history, templates often spell its opening differently or leave
  out its thoughts: the last tokens of a prompt are then not part of the next one, but those before them are. The same
  position serves a repeated prompt. A state after all its tokens could not, because one token must remain to compute.
- where a prompt diverges from others of its client, such as after a common system prompt.

Each state costs a copy, and the latter two also cost an extra step, because the prompt is computed up to the position
first. So they are kept only if that saves a later prompt `WORTH_KEEPING` tokens.
"""

from __future__ import annotations

import heapq

from services.text.engine.kv_cells import BLOCK, CellLedger, Holding
from services.text.engine.prefix import KeptPrefix, PrefixCache, StateCache, common_blocks, common_tokens
from services.text.engine.runtime import Runtime
from services.text.engine.sequence import Sequence

# A prompt waits for another one only if that saves a picture, or this many tokens: fewer are not worth a step.
WORTH_WAITING = 8 * BLOCK
OPENING = BLOCK  # tokens at the end of a prompt that a template may spell differently once an answer follows
WORTH_KEEPING = 8 * BLOCK  # tokens


class PrefixReuse:
    """The runtime's sequence ids, which running requests and entries of the prefix cache hold."""

    CACHE: type[PrefixCache] = PrefixCache

    def __init__(self, runtime: Runtime, ledger: CellLedger, max_sequences: int, cached_cells: int) -> None:
        """Runs up to `max_sequences` requests; the prefix cache holds up to `cached_cells` cells, 0 turns it off."""
        self._runtime = runtime
        self._ledger = ledger
        self._ids = list(range(runtime.sequence_ids))  # a heap of the free ids
        self._on = (runtime.reuses_prefixes or runtime.reuses_states) and cached_cells > 0
        entries = runtime.sequence_ids - (max_sequences if runtime.shares_cells else 0)
        self._entries = self.CACHE(ledger, entries, cached_cells, self._free_id)

    def clear(self) -> None:
        """Drops all entries of the prefix cache."""
        self._entries.clear()

    def evict(self) -> bool:
        """Drops the least valuable entry of the prefix cache. Returns False if it is empty."""
        return self._entries.evict()

    def place(self, sequence: Sequence) -> None:
        """Gives a request a sequence id."""
        sequence.id = heapq.heappop(self._ids)

    def shareable(self, sequence: Sequence, running: list[Sequence]) -> int:
        """Counts the tokens that a waiting request could share with a running one, now or once they are computed."""
        if not self._runtime.shares_cells or not self._may_reuse(sequence):
            return 0
        return max((self._common(sequence, other) for other in running), default=0)

    def waits(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Reuses the best prefix for a new prompt, or returns True if it should wait for an earlier prompt's prefix."""
        if sequence.begun or not self._may_reuse(sequence):
            return False
        found = self._entries.find(sequence.client, sequence.tokens[:-1])
        best = (0, -1, Holding(), list[int]())
        if found:
            best = (sequence.cut(found[1]), found[0].id, found[0].holding, found[0].tokens)
        promised = 0
        for other in running:
            common = self._common(sequence, other)
            usable = sequence.cut(min(common, other.computed) // BLOCK * BLOCK)
            if usable > best[0]:
                best = (usable, other.id, other.holding, other.tokens[: other.computed])
            if other.arrival < sequence.arrival:
                promised = max(promised, common)
        known = max(best[0], sequence.computed)
        if promised >= known + WORTH_WAITING or sequence.pictured(known, promised):
            return True
        self._copy(sequence, *best)
        return False

    def reached(self, sequence: Sequence) -> None:
        """Handles a running request's progress after a step. Does nothing here; `StateReuse` overrides it."""

    def retire(self, sequence: Sequence) -> None:
        """Moves the whole blocks of an ended request to the prefix cache and frees the rest."""
        whole = sequence.cut(sequence.computed // BLOCK * BLOCK)
        if not self._on or not whole:
            self.release(sequence)
            return
        self._runtime.drop(sequence.id, whole)
        kept = self._ledger.keep(sequence.holding)
        self._entries.keep(KeptPrefix(sequence.client, sequence.tokens[:whole], sequence.id, kept, sequence.keys))

    def release(self, sequence: Sequence) -> None:
        """Frees a running request's cells and its sequence id."""
        self._ledger.release(sequence.holding)
        self._free_id(sequence.id)

    def _may_reuse(self, sequence: Sequence) -> bool:
        # Reused cells come from batches of another shape and differ in the last bits; a seed asks for equal runs.
        return self._on and sequence.params.seed is None and not sequence.scoring

    def _common(self, sequence: Sequence, other: Sequence) -> int:
        if other is sequence or other.client != sequence.client or other.tokens[:BLOCK] != sequence.tokens[:BLOCK]:
            return 0
        common = common_blocks(sequence.tokens, other.tokens)
        return sequence.cut(min(common, (len(sequence.tokens) - 1) // BLOCK * BLOCK))

    def _copy(self, sequence: Sequence, tokens: int, source: int, holding: Holding, computed: list[int]) -> None:
        """Copies another sequence's first tokens to the start of a prompt, if that saves a block.

        `computed`: all tokens of that sequence.
        """
        sequence.begun = True
        if tokens < sequence.computed + BLOCK:
            return
        if sequence.computed:
            self._ledger.release(sequence.holding)
            self._runtime.drop(sequence.id)
        self._runtime.copy(source, sequence.id, tokens)
        self._begin_with(sequence, tokens, holding if self._runtime.shares_cells else None)

    def _begin_with(self, sequence: Sequence, tokens: int, shared: Holding | None) -> None:
        """Records that the first `tokens` of a prompt are computed: in cells `shared` with another, or in its own."""
        whole = tokens // BLOCK * BLOCK if shared else 0
        if shared:
            self._ledger.share(shared, sequence.holding, whole)
        self._ledger.grow(sequence.holding, tokens - whole)
        sequence.computed = tokens
        sequence.cached = max(sequence.cached, min(tokens, sequence.prompt_tokens))

    def _free_id(self, sequence_id: int) -> None:
        self._runtime.drop(sequence_id)
        heapq.heappush(self._ids, sequence_id)


class StreamReuse(PrefixReuse):
    """Sequence ids of a runtime that computes adjacent ids together and copies cells instead of sharing them.

    An entry stays where its request ran until another request needs the id.
    """

    def place(self, sequence: Sequence) -> None:
        """Gives a request the id next to those of running requests, with the cells of its prefix if they are there."""
        prompt = sequence.tokens[:-1] if self._may_reuse(sequence) else []
        found = self._entries.find(sequence.client, prompt)
        place = self._adjacent()
        alone = found[0] if found else None
        entry = alone if place is None else self._entries.at(place)
        shared = self._entries.take(entry, sequence.client, prompt, sequence.cache_key) if entry else 0
        if entry and shared:
            shared, sequence.id = sequence.cut(shared), entry.id
            self._runtime.drop(entry.id, shared)
            self._begin_with(sequence, shared, None)
            return
        if place is None:
            if not self._ids:
                self._entries.evict()
            place = self._ids[0]
        elif entry:
            self._clear(entry)
        self._ids.remove(place)
        heapq.heapify(self._ids)
        sequence.id = place

    def _adjacent(self) -> int | None:
        """Returns the first id in or after a row of running ids, or the one before it; None if none runs."""
        count, idle = self._runtime.sequence_ids, {*self._ids, *self._entries.ids()}
        first = next((one for one in range(count) if one not in idle), None)
        return None if first is None else next((one for one in range(first, count) if one in idle), first - 1)

    def _clear(self, entry: KeptPrefix) -> None:
        """Moves an entry to the highest free id. Drops less valuable entries if that needs their cells or an id."""
        place, tokens = entry.id, len(entry.tokens)
        while not self._ids or self._ledger.free < tokens:
            self._entries.evict()
            if self._entries.at(place) is None:
                return
        target = max(self._ids)
        self._ids.remove(target)
        heapq.heapify(self._ids)
        self._runtime.copy(place, target, tokens)
        self._entries.move(entry, target)
        self._free_id(place)

    def _copy(self, sequence: Sequence, tokens: int, source: int, holding: Holding, computed: list[int]) -> None:
        tokens = sequence.cut(common_tokens(computed, sequence.tokens[:-1]))  # a copy need not be whole blocks
        while self._ledger.free < tokens and self._entries.evict(spared=source):
            pass
        super()._copy(sequence, tokens if tokens <= self._ledger.free else 0, source, holding, computed)


class StateReuse(PrefixReuse):
    """Sequence ids of requests whose state can only be reused as a whole, by copying."""

    CACHE = StateCache
    _entries: StateCache

    def __init__(self, runtime: Runtime, ledger: CellLedger, max_sequences: int, cached_cells: int) -> None:
        """Takes the arguments of `PrefixReuse`.

        The first `max_sequences` ids are for running requests, because a runtime batches only adjacent ids; the others
        are for entries.
        """
        super().__init__(runtime, ledger, max_sequences, cached_cells)
        self._max_sequences = max_sequences
        self._cached_cells = cached_cells

    def shareable(self, sequence: Sequence, running: list[Sequence]) -> int:
        """Returns 0: it is not known in advance whether a matching state will exist."""
        return 0

    def waits(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Copies the longest state that the prompt begins with, or returns True to wait for a longer one."""
        if sequence.begun or not self._may_reuse(sequence):
            return False
        found = self._entries.find(sequence.client, sequence.tokens[:-1])
        usable = found[1] if found else 0
        promised = max((self._promised(sequence, other) for other in running), default=0)
        if promised >= usable + WORTH_WAITING or sequence.pictured(usable, promised):
            return True
        sequence.begun = True
        if found:
            self._copy(sequence, usable, found[0].id, found[0].holding, found[0].tokens)
            found[0].maker = sequence.arrival  # its user needs it as long as its own states
            if found[0].keys:
                found[0].keys |= sequence.keys
        sequence.marks = self._marks(sequence, running)
        return False

    def reached(self, sequence: Sequence) -> None:
        """Keeps the state of a running request if its prompt has reached a mark."""
        if sequence.computed in sequence.marks:
            sequence.marks.remove(sequence.computed)
            # Where prompts diverge, the state belongs to no single session.
            self._keep(sequence, sequence.keys if sequence.computed == _settled(sequence) else set())

    def retire(self, sequence: Sequence) -> None:
        """Copies the state of an ended request to the prefix cache and frees its sequence id."""
        if self._on and sequence.computed >= BLOCK:
            self._keep(sequence, sequence.keys)
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Frees a running request's cells and its sequence id. Cells that it shared now count as cached."""
        super().release(sequence)
        self._entries.trim()

    def _promised(self, sequence: Sequence, other: Sequence) -> int:
        """Returns the length of the longest state that an earlier request will leave and this one can use."""
        if other.arrival >= sequence.arrival or other.client != sequence.client:
            return 0
        ahead = [mark for mark in other.marks if mark < len(sequence.tokens)]
        return max((mark for mark in ahead if other.tokens[:mark] == sequence.tokens[:mark]), default=0)

    def _marks(self, sequence: Sequence, running: list[Sequence]) -> list[int]:
        """Returns the positions of a new request's prompt at which to keep its state."""
        last = _settled(sequence)
        others = [other.tokens for other in running if other is not sequence and other.client == sequence.client]
        common = max((common_blocks(tokens, sequence.tokens) for tokens in others), default=0)
        parting = sequence.cut(min(max(common, self._entries.common(sequence.client, sequence.tokens)), last))
        marks, known = [], sequence.computed
        for place in (parting, last):
            if place >= known + WORTH_KEEPING:
                marks.append(place)
                known = place
        return marks

    def _keep(self, sequence: Sequence, keys: set[str]) -> None:
        """Copies the state of a running request to the prefix cache if it fits."""
        if sequence.computed > self._cached_cells:
            return
        if max(self._ids, default=-1) < self._max_sequences and not self._entries.evict():
            return
        place = max(self._ids)
        self._ids.remove(place)
        heapq.heapify(self._ids)
        self._runtime.copy(sequence.id, place, sequence.computed)
        kept = self._ledger.keep_whole(sequence.holding)
        tokens = sequence.tokens[: sequence.computed]
        self._entries.keep(KeptPrefix(sequence.client, tokens, place, kept, set(keys), sequence.arrival))


def _settled(sequence: Sequence) -> int:
    """Returns the length of a prompt without its last `OPENING` tokens, in whole blocks."""
    return sequence.cut(max(0, sequence.prompt_tokens - OPENING) // BLOCK * BLOCK)
