"""Prefix reuse for recurrent models: requests reuse whole states, each after exactly its tokens.

Such a state can be copied, but neither shared in part nor cut, so it must be kept at positions that a later prompt will
pass:

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

from services.text.engine.kv_cells import BLOCK, CellLedger
from services.text.engine.prefix import Entry, StateCache, common_blocks
from services.text.engine.prefix_reuse import WORTH_WAITING, PrefixReuse
from services.text.engine.runtime import Runtime
from services.text.engine.sequence import Sequence

OPENING = BLOCK  # tokens at the end of a prompt that a template may spell differently once an answer follows
WORTH_KEEPING = 8 * BLOCK  # tokens


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
        if any(self._promised(sequence, other) >= usable + WORTH_WAITING for other in running):
            return True
        sequence.begun = True
        if found:
            self._copy(sequence, usable, found[0].id, found[0].holding)
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
        parting = min(max(common, self._entries.common(sequence.client, sequence.tokens)), last)
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
        self._entries.keep(Entry(sequence.client, tokens, place, kept, set(keys), sequence.arrival))


def _settled(sequence: Sequence) -> int:
    """Returns the length of a prompt without its last `OPENING` tokens, in whole blocks."""
    return max(0, sequence.prompt_tokens - OPENING) // BLOCK * BLOCK
