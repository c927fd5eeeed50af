"""The prefix cache of recurrent models: a state can be reused only after all of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from services.text.engine.prefix import Entry, PrefixCache, common_blocks


class StateCache(PrefixCache):
    """Kept states, least recently used first. A longer state does not replace a shorter one."""

    def find(self, client: str, tokens: Sequence[int]) -> tuple[Entry, int] | None:
        """Returns the longest entry that is a prefix of `tokens`, and its length, or None."""
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
        """Returns the longest common prefix, in whole blocks, of `tokens` and any entry of the client."""
        entries = (entry for entry in self._entries.values() if entry.client == client)
        return max((common_blocks(entry.tokens, tokens) for entry in entries), default=0)

    def keep(self, entry: Entry) -> None:
        """Adds a state, which replaces an entry with the same tokens.

        A session keeps the entries of its newest request. The longest of them is evicted first: it helps only if the
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
