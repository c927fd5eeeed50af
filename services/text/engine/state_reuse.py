"""What requests to a recurrent model take over of earlier ones: whole states, each after exactly its tokens.

Such a state can be copied, but neither shared in part nor cut, so it must be kept where a later prompt will pass:

- where a request ends. The next turn of a chat goes on from there if it spells the answer as it was generated.
- a little before a prompt's end. Templates often spell the answer's opening, or leave out its thoughts, once it is
  history: the last tokens of a prompt are then no part of the next one, but what is before them is. The same place
  serves a prompt that is sent again, which a state after all its tokens could not: one must be left to compute.
- where a prompt parts from others of its client, as after a common system prompt.

Each costs a copy of the state, the latter two also a step of their own: a prompt is computed up to there and then on.
So they are kept only where that saves a later prompt `WORTH_KEEPING` tokens.
"""

from __future__ import annotations

import heapq

from services.text.engine.kv_cells import BLOCK, CellLedger
from services.text.engine.prefix import Entry, common_blocks
from services.text.engine.prefix_reuse import WORTH_WAITING, PrefixReuse
from services.text.engine.runtime import Runtime
from services.text.engine.sequence import Sequence
from services.text.engine.state_cache import StateCache

OPENING = BLOCK  # tokens at the end of a prompt that may be spelled otherwise once an answer follows
WORTH_KEEPING = 8 * BLOCK  # tokens


class StateReuse(PrefixReuse):
    """Places of requests whose computed tokens can only be taken over as a whole, by copying."""

    CACHE = StateCache
    _entries: StateCache

    def __init__(self, runtime: Runtime, ledger: CellLedger, max_sequences: int, cached_cells: int) -> None:
        """As `PrefixReuse`.

        The first `max_sequences` ids are for running requests, which a runtime computes together only as neighbours;
        the others for entries.
        """
        super().__init__(runtime, ledger, max_sequences, cached_cells)
        self._max_sequences = max_sequences
        self._cached_cells = cached_cells

    def shareable(self, sequence: Sequence, running: list[Sequence]) -> int:
        """None for certain: whether a state will be there is not known before."""
        return 0

    def waits(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """Copies the longest state that a prompt begins with; whether it should wait for a longer one instead."""
        if sequence.begun or not self._may_reuse(sequence):
            return False
        found = self._entries.find(sequence.client, sequence.tokens[:-1])
        there = found[1] if found else 0
        if any(self._promised(sequence, other) >= there + WORTH_WAITING for other in running):
            return True
        sequence.begun = True
        if found:
            self._copy(sequence, there, found[0].id, found[0].holding)
            found[0].maker = sequence.arrival  # whoever goes on from a state needs it as long as its own
            if found[0].keys:
                found[0].keys |= sequence.keys
        sequence.marks = self._marks(sequence, running)
        return False

    def reached(self, sequence: Sequence) -> None:
        """Keeps the state of a running request where its prompt has come to a mark."""
        if sequence.computed in sequence.marks:
            sequence.marks.remove(sequence.computed)
            # Where prompts part, the state is no session's own.
            self._keep(sequence, sequence.keys if sequence.computed == _settled(sequence) else set())

    def retire(self, sequence: Sequence) -> None:
        """A running request has ended: its state is copied to the prefix cache, its place is free."""
        if self._on and sequence.computed >= BLOCK:
            self._keep(sequence, sequence.keys)
        self.give_up(sequence)

    def give_up(self, sequence: Sequence) -> None:
        """A running request gives up its cells and its place; what it shared with entries is theirs alone now."""
        super().give_up(sequence)
        self._entries.trim()

    def _promised(self, sequence: Sequence, other: Sequence) -> int:
        """Tokens of the longest state that an earlier request will leave where this one will pass."""
        if other.arrival >= sequence.arrival or other.client != sequence.client:
            return 0
        ahead = [mark for mark in other.marks if mark < len(sequence.tokens)]
        return max((mark for mark in ahead if other.tokens[:mark] == sequence.tokens[:mark]), default=0)

    def _marks(self, sequence: Sequence, running: list[Sequence]) -> list[int]:
        """Where in its prompt a request that begins is to leave its state."""
        last = _settled(sequence)
        others = [other.tokens for other in running if other is not sequence and other.client == sequence.client]
        common = max((common_blocks(tokens, sequence.tokens) for tokens in others), default=0)
        parting = min(max(common, self._entries.common(sequence.client, sequence.tokens)), last)
        marks, known = [], sequence.computed
        for place in (parting, last):
            if place >= known + WORTH_KEEPING:
                marks.append(place)
                known = place
        return marks

    def _keep(self, sequence: Sequence, keys: set[str]) -> None:
        """Copies the state of a running request to the prefix cache, where there is room for it at all."""
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
        self._entries.keep(Entry(sequence.client, tokens, place, kept, set(keys), sequence.arrival))


def _settled(sequence: Sequence) -> int:
    """Tokens in whole blocks that a prompt begins with, but for its end."""
    return max(0, sequence.prompt_tokens - OPENING) // BLOCK * BLOCK
