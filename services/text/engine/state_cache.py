"""The prefix cache of recurrent models: a state stands for all its tokens and for no part of them."""

from __future__ import annotations

from collections.abc import Sequence

from services.text.engine.prefix import Entry, PrefixCache, common_blocks


class StateCache(PrefixCache):
    """Kept states, least recently used first. One that is longer does not make a shorter one superfluous."""

    def find(self, client: str, tokens: Sequence[int]) -> tuple[Entry, int] | None:
        """The longest entry whose tokens all begin `tokens`, and how many those are; None when there is none."""
        best: Entry | None = None
        for entry in self._entries.values():
            length = len(entry.tokens)
            longer = best is None or length > len(best.tokens)
            if longer and entry.client == client and entry.tokens == tokens[:length]:
                best = entry
        if best is None:
            return None
        self._entries.move_to_end(best.id)
        return best, len(best.tokens)

    def common(self, client: str, tokens: Sequence[int]) -> int:
        """Tokens in whole blocks that `tokens` and an entry, or only a part of it, begin with alike; the most."""
        entries = (entry for entry in self._entries.values() if entry.client == client)
        return max((common_blocks(entry.tokens, tokens) for entry in entries), default=0)

    def keep(self, entry: Entry) -> None:
        """Takes a state; of the same tokens only the newest is kept.

        A session has the entries of its newest request. Of those the longest goes first: it is of use only where the
        next prompt spells the answer as it was generated.
        """
        for other in list(self._entries.values()):
            if other.client == entry.client and other.tokens == entry.tokens:
                entry.keys |= other.keys
                self._forget(self._entries.pop(other.id))
        self._entries[entry.id] = entry
        shorter = [other.id for other in self._entries.values() if other is not entry and other.maker == entry.maker]
        for sequence_id in shorter:
            self._entries.move_to_end(sequence_id)
        self._settle(entry)
