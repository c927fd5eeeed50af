"""Prefix reuse between requests, and the assignment of the runtime's sequence ids.

A request can reuse any whole blocks of a prefix, from entries of the prefix cache and from running requests. For
runtimes that can only copy whole sequences, `StateReuse` replaces this.
"""

from __future__ import annotations

import heapq

from services.text.engine.kv_cells import BLOCK, CellLedger, Holding
from services.text.engine.prefix import Entry, PrefixCache, common_blocks
from services.text.engine.runtime import Runtime
from services.text.engine.sequence import Sequence

# A prompt waits for another prompt only if that saves at least this many tokens: fewer are not worth a step.
WORTH_WAITING = 8 * BLOCK
# Without shared cells, a copy moves a whole stream of the cache: prefixes shorter than this are computed again.
WORTH_COPYING = 8 * BLOCK


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
        """Gives a request a sequence id: a free one, or that of a prefix cache entry with the common prefix."""
        if self._ids:
            sequence.id = heapq.heappop(self._ids)  # the lowest: runtimes batch adjacent ids
            return
        prompt = sequence.tokens[:-1] if self._may_reuse(sequence) else []
        taken = self._entries.take(sequence.client, prompt, sequence.cache_key)
        if taken is None:
            raise AssertionError("every sequence id is running or cached")
        sequence.id = taken[0].id
        self._runtime.drop(sequence.id, taken[1])
        self._begin_with(sequence, taken[1], None)

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
        best = (found[1], found[0].id, found[0].holding) if found else (0, -1, Holding())
        promised = 0
        for other in running:
            common = self._common(sequence, other)
            usable = min(common, other.computed) // BLOCK * BLOCK
            if usable > best[0]:
                best = (usable, other.id, other.holding)
            if other.arrival < sequence.arrival:
                promised = max(promised, common)
        if promised >= max(best[0], sequence.computed) + WORTH_WAITING:
            return True
        self._copy(sequence, *best)
        return False

    def reached(self, sequence: Sequence) -> None:
        """Handles a running request's progress after a step. Does nothing here; `StateReuse` overrides it."""

    def retire(self, sequence: Sequence) -> None:
        """Moves the whole blocks of an ended request to the prefix cache and frees the rest."""
        whole = sequence.computed // BLOCK * BLOCK
        if not self._on or not whole:
            self.release(sequence)
            return
        self._runtime.drop(sequence.id, whole)
        kept = self._ledger.keep(sequence.holding)
        self._entries.keep(Entry(sequence.client, sequence.tokens[:whole], sequence.id, kept, sequence.keys))

    def release(self, sequence: Sequence) -> None:
        """Frees a running request's cells and its sequence id."""
        self._ledger.release(sequence.holding)
        self._free_id(sequence.id)

    def _may_reuse(self, sequence: Sequence) -> bool:
        # Reused cells come from batches of another shape and differ in the last bits; a seed asks for equal runs.
        return self._on and sequence.params.seed is None

    def _common(self, sequence: Sequence, other: Sequence) -> int:
        if other is sequence or other.client != sequence.client or other.tokens[:BLOCK] != sequence.tokens[:BLOCK]:
            return 0
        return min(common_blocks(sequence.tokens, other.tokens), (len(sequence.tokens) - 1) // BLOCK * BLOCK)

    def _copy(self, sequence: Sequence, tokens: int, source: int, holding: Holding) -> None:
        """Copies another sequence's first tokens to the start of a prompt, if that saves enough."""
        sequence.begun = True
        if tokens < sequence.computed + (BLOCK if self._runtime.shares_cells else WORTH_COPYING):
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
