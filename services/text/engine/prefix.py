"""The prefix cache: cells of ended requests, kept for later requests of the same client with a common prefix.

Entries hold whole blocks only and belong to one client. The least recently used entry is dropped first, when the cache
has too many entries and whenever a running request needs cells. Entries of sessions with a client's key are dropped
after all entries without a key, as long as keyed entries hold no more than their share. The state of a recurrent model
can be reused only after all of its tokens (`StateCache`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from services.text.engine.kv_cells import BLOCK, CellLedger, Holding

KEYED_SHARE = 2  # divisor: entries with a key may hold half of the cache


@dataclass(slots=True, eq=False)
class KeptPrefix:
    """A kept prefix: its tokens and the sequence id that holds their cells."""

    client: str
    tokens: list[int]
    id: int
    holding: Holding
    keys: set[str] = field(default_factory=set)  # the client's names of the sessions whose newest prefix this is
    maker: object = field(default_factory=object)  # the request that left it or reused it last


def common_tokens(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns the length of the common prefix of two token sequences."""
    at, end = common_blocks(left, right), min(len(left), len(right))
    while at < end and left[at] == right[at]:
        at += 1
    return at


def common_blocks(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns the length of the common prefix of two token sequences, rounded down to whole blocks."""
    low, high = 0, min(len(left), len(right)) // BLOCK
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * BLOCK : middle * BLOCK] == right[low * BLOCK : middle * BLOCK]:
            low = middle
        else:
            high = middle - 1
    return low * BLOCK


class PrefixCache:
    """Kept prefixes, least recently used first. `drop` frees a sequence id and its cells in the runtime."""

    def __init__(self, ledger: CellLedger, max_entries: int, max_cells: int, drop: Callable[[int], None]) -> None:
        self._ledger = ledger
        self._max_entries = max_entries
        self._max_cells = max_cells
        self._drop = drop
        self._entries: OrderedDict[int, KeptPrefix] = OrderedDict()  # by sequence id

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, client: str, tokens: Sequence[int]) -> tuple[KeptPrefix, int] | None:
        """Returns the entry that shares most tokens with `tokens`, and their number; None if none shares a block."""
        best: tuple[KeptPrefix, int] | None = None
        for entry in self._entries.values():
            if entry.client == client and entry.tokens[:BLOCK] == tokens[:BLOCK]:
                shared = common_blocks(entry.tokens, tokens)
                if shared and (best is None or shared > best[1]):
                    best = (entry, shared)
        if best:
            self._entries.move_to_end(best[0].id)
        return best

    def at(self, sequence_id: int) -> KeptPrefix | None:
        """Returns the entry in a sequence, or None."""
        return self._entries.get(sequence_id)

    def ids(self) -> Iterable[int]:
        """Returns the sequence ids that hold entries."""
        return self._entries.keys()

    def take(self, entry: KeptPrefix, client: str, tokens: Sequence[int], key: str = "") -> int:
        """Removes an entry if a request of `client` can run in its sequence. Returns the number of shared tokens.

        The entry must have the longest common prefix, this must be at least half of it, and no other session may need
        it. 0: the entry remains.
        """
        found = self.find(client, tokens) if entry.client == client else None
        if not found or found[0] is not entry or 2 * found[1] < len(entry.tokens) or entry.keys - {key}:
            return 0
        del self._entries[entry.id]
        self._ledger.forget(entry.holding)
        return common_tokens(entry.tokens, tokens)

    def move(self, entry: KeptPrefix, sequence_id: int) -> None:
        """Records that an entry's cells are now in another sequence. Its value stays the same."""
        entries = list(self._entries.values())
        entry.id = sequence_id
        self._entries = OrderedDict((each.id, each) for each in entries)

    def keep(self, entry: KeptPrefix) -> None:
        """Adds an ended request's prefix, unless another entry covers it.

        A session has one entry: a new one replaces the previous one.
        """
        kept = entry
        for other in list(self._entries.values()):
            if other.client != entry.client:
                continue
            shared = common_blocks(other.tokens, entry.tokens)
            if shared == len(entry.tokens):
                self._forget(entry)
                self._entries.move_to_end(other.id)
                other.keys |= entry.keys
                kept = other
                break
            if shared == len(other.tokens):
                entry.keys |= other.keys
                self._forget(self._entries.pop(other.id))
        self._entries[kept.id] = kept
        self._settle(kept)

    def evict(self, spared: int = -1) -> bool:
        """Drops the least valuable entry. Returns False if there is none, or if it is the one in sequence `spared`."""
        if not self._entries or (least := self._least_wanted().id) == spared:
            return False
        self._forget(self._entries.pop(least))
        return True

    def trim(self) -> None:
        """Drops the least valuable entries while the cache exceeds its limits."""
        while len(self._entries) > self._max_entries or self._ledger.cached > self._max_cells:
            if not self.evict():
                break

    def clear(self) -> None:
        """Drops all entries."""
        while self.evict():
            pass

    def _least_wanted(self) -> KeptPrefix:
        """Returns the least recently used entry without a key, or of all entries if each has one."""
        return next((entry for entry in self._entries.values() if not entry.keys), next(iter(self._entries.values())))

    def _settle(self, newest: KeptPrefix) -> None:
        """Drops the entries that a new entry replaces, and those that exceed the limits."""
        self._replace(newest)
        self._bound_keys()
        self.trim()

    def _replace(self, newest: KeptPrefix) -> None:
        """Drops the earlier entries of a new entry's sessions."""
        for other in list(self._entries.values()):
            mine = other.maker == newest.maker or other.client != newest.client
            if not mine and other.keys & newest.keys:
                other.keys -= newest.keys
                if not other.keys:
                    self._forget(self._entries.pop(other.id))

    def _bound_keys(self) -> None:
        """Removes the keys of the least recently used entries while keyed entries hold more than their share."""
        keyed = [entry for entry in self._entries.values() if entry.keys]
        cells = sum(len(entry.tokens) for entry in keyed)
        for at, entry in enumerate(keyed):
            entries = len(keyed) - at
            if entries <= self._max_entries // KEYED_SHARE and cells <= self._max_cells // KEYED_SHARE:
                return
            entry.keys = set()
            cells -= len(entry.tokens)

    def _forget(self, entry: KeptPrefix) -> None:
        self._ledger.forget(entry.holding)
        self._drop(entry.id)


class StateCache(PrefixCache):
    """Kept states, least recently used first. A longer state does not replace a shorter one."""

    def find(self, client: str, tokens: Sequence[int]) -> tuple[KeptPrefix, int] | None:
        """Returns the longest entry that is a prefix of `tokens`, and its length, or None."""
        best: KeptPrefix | None = None
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

    def keep(self, entry: KeptPrefix) -> None:
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
