"""Which pages of the key-value cache each sequence holds.

A page has `BLOCK` cells, each for one token of one sequence in all layers. Sequences that begin alike hold the same
pages; a page with several holders is copied before anyone writes into it. What the pages hold is elsewhere.

Page 0 is never written: it stays zero and fills up short page tables. Page 1 takes what padding rows write.
"""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from services.text.engine.kv_cells import BLOCK
from services.text.engine.runtime import OutOfCells

ZERO_PAGE = 0
TRASH_PAGE = 1
RESERVED_PAGES = 2


class PageTables:
    """The page tables of all sequences, as tensors can use them: `rows` is int64 [sequences, pages of a context]."""

    def __init__(self, count: int, sequences: int, longest: int) -> None:
        """`count` is the number of pages, the reserved ones included; a sequence has at most `longest`."""
        self.rows: Tensor = torch.full((sequences, longest), ZERO_PAGE)
        self._tables: list[list[int]] = [[] for _ in range(sequences)]
        self._holders = [0] * count
        self._free = list(range(RESERVED_PAGES, count))  # a heap: low pages first keep neighbours together

    @property
    def free(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free)

    def extend(self, wanted: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        """Makes room for (sequence, start, tokens) each; returns the pages to copy first, as (from, to).

        Raises:
            OutOfCells: there are not enough free pages; nothing was changed.
        """
        if sum(self._missing(*each) for each in wanted) > len(self._free):
            raise OutOfCells
        copies = []
        for sequence, start, tokens in wanted:
            table = self._tables[sequence]
            place = start // BLOCK
            if place < len(table) and self._holders[table[place]] > 1:
                source = table[place]
                self._holders[source] -= 1
                table[place] = self._take()
                copies.append((source, table[place]))
                self._write(sequence, place)
            before = len(table)
            while len(table) * BLOCK < start + tokens:
                table.append(self._take())
            if len(table) > before:
                self._write(sequence, before)
        return copies

    def share(self, source: int, target: int, tokens: int) -> None:
        """Lets the sequence `target`, which gives up its own, hold the pages of the first `tokens` of `source`."""
        self.cut(target, 0)
        shared = self._tables[source][: -(-tokens // BLOCK)]
        for page in shared:
            self._holders[page] += 1
        self._tables[target] = shared
        self._write(target, 0)

    def cut(self, sequence: int, tokens: int) -> None:
        """Gives up what a sequence holds beyond its first `tokens`."""
        table = self._tables[sequence]
        keep = -(-tokens // BLOCK)
        for page in table[keep:]:
            self._holders[page] -= 1
            if not self._holders[page]:
                heapq.heappush(self._free, page)
        self.rows[sequence, keep : len(table)] = ZERO_PAGE
        del table[keep:]

    def _write(self, sequence: int, place: int) -> None:
        """Takes over a table, which changed from `place` on, into `rows`."""
        table = self._tables[sequence]
        self.rows[sequence, place : len(table)] = torch.tensor(table[place:])

    def _missing(self, sequence: int, start: int, tokens: int) -> int:
        """Pages that a sequence needs for `tokens` from `start` on."""
        table = self._tables[sequence]
        place = start // BLOCK
        copied = place < len(table) and self._holders[table[place]] > 1
        return max(0, -(-(start + tokens) // BLOCK) - len(table)) + copied

    def _take(self) -> int:
        page = heapq.heappop(self._free)
        self._holders[page] = 1
        return page
