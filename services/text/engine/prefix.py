"""The prefix cache: cells of ended requests, kept for later requests of the same client that begin alike.

Entries hold whole blocks only, belong to one client, and are dropped least recently used first: when there are too
many of them, and whenever a running request needs their cells. The prefix of a session that its client has given a key
goes only after all that have none, as long as those with keys hold no more than their share.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.text.engine.kv_cells import BLOCK, CellLedger, Holding

KEYED_SHARE = 2  # of the cache, entries with a key may hold a half


@dataclass(slots=True, eq=False)
class Entry:
    """A kept prefix: its tokens, and the sequence id that holds their cells."""

    client: str
    tokens: list[int]
    id: int
    holding: Holding
    keys: set[str] = field(default_factory=set)  # what the client calls the sessions whose newest prefix it is
    maker: object = field(default_factory=object)  # the request that left it, or went on from it last


def common_tokens(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens that two sequences have in common from the start."""
    at, end = common_blocks(left, right), min(len(left), len(right))
    while at < end and left[at] == right[at]:
        at += 1
    return at


def common_blocks(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens that two sequences have in common from the start, rounded down to whole blocks."""
    low, high = 0, min(len(left), len(right)) // BLOCK
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * BLOCK : middle * BLOCK] == right[low * BLOCK : middle * BLOCK]:
            low = middle
        else:
            high = middle - 1
    return low * BLOCK


class PrefixCache:
    """Kept prefixes, least recently used first. `drop` gives a sequence id's cells back to the runtime."""

    def __init__(self, ledger: CellLedger, max_entries: int, max_cells: int, drop: Callable[[int], None]) -> None:
        self._ledger = ledger
        self._max_entries = max_entries
        self._max_cells = max_cells
        self._drop = drop
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # by sequence id

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, client: str, tokens: Sequence[int]) -> tuple[Entry, int] | None:
        """The entry that shares most with `tokens`, and how many tokens it shares; None when none shares a block."""
        best: tuple[Entry, int] | None = None
        for entry in self._entries.values():
            if entry.client == client and entry.tokens[:BLOCK] == tokens[:BLOCK]:
                shared = common_blocks(entry.tokens, tokens)
                if shared and (best is None or shared > best[1]):
                    best = (entry, shared)
        if best:
            self._entries.move_to_end(best[0].id)
        return best

    def take(self, client: str, tokens: Sequence[int], key: str = "") -> tuple[Entry, int] | None:
        """Takes an entry out, to run on in its sequence: the one that shares most, if that is half of it and no other
        session needs it, else the one that is wanted least. Also how many tokens it shares, perhaps 0. None when there
        is no entry.
        """
        if not self._entries:
            return None
        found = self.find(client, tokens)
        good = found is not None and 2 * found[1] >= len(found[0].tokens)
        mine = found is not None and (not found[0].keys or key in found[0].keys)
        entry = found[0] if found and good and mine else self._least_wanted()
        del self._entries[entry.id]
        self._ledger.forget(entry.holding)
        return entry, common_tokens(entry.tokens, tokens) if entry.client == client else 0

    def keep(self, entry: Entry) -> None:
        """Takes an ended request's prefix; one that another entry covers is not kept twice.

        A session has one entry: the newest replaces the one before.
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

    def evict(self) -> bool:
        """Drops the entry that is wanted least; False when there is none."""
        if not self._entries:
            return False
        self._forget(self._entries.pop(self._least_wanted().id))
        return True

    def trim(self) -> None:
        """Drops what is wanted least while there is more than there may be."""
        while len(self._entries) > self._max_entries or self._ledger.cached > self._max_cells:
            if not self.evict():
                break

    def clear(self) -> None:
        """Drops all entries."""
        while self.evict():
            pass

    def _least_wanted(self) -> Entry:
        """The least recently used entry without a key; where all have one, of those."""
        return next((entry for entry in self._entries.values() if not entry.keys), next(iter(self._entries.values())))

    def _settle(self, newest: Entry) -> None:
        """Drops what an entry replaces, and what there is no room for beside it."""
        self._replace(newest)
        self._bound_keys()
        self.trim()

    def _replace(self, newest: Entry) -> None:
        """Drops what the sessions of an entry had before."""
        for other in list(self._entries.values()):
            mine = other.maker == newest.maker or other.client != newest.client
            if not mine and other.keys & newest.keys:
                other.keys -= newest.keys
                if not other.keys:
                    self._forget(self._entries.pop(other.id))

    def _bound_keys(self) -> None:
        """Takes the keys from the least recently used entries while those that have one hold more than their share."""
        keyed = [entry for entry in self._entries.values() if entry.keys]
        cells = sum(len(entry.tokens) for entry in keyed)
        for at, entry in enumerate(keyed):
            entries = len(keyed) - at
            if entries <= self._max_entries // KEYED_SHARE and cells <= self._max_cells // KEYED_SHARE:
                return
            entry.keys = set()
            cells -= len(entry.tokens)

    def _forget(self, entry: Entry) -> None:
        self._ledger.forget(entry.holding)
        self._drop(entry.id)
