"""The page tables of the key-value cache: the pages that each sequence holds.

A page has `BLOCK` cells, each for one token of one sequence in all layers. Sequences with a common prefix hold the same
pages; a page with several holders is copied before a write. The contents of the pages are in `PagedCache`.

Page 0 is never written: it stays zero and fills up short page tables. Padding rows write to page 1.
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
    """The page tables of all sequences, as a tensor: `rows` is int64 [sequences, pages of a context]."""

    def __init__(self, count: int, sequences: int, longest: int) -> None:
        """`count`: number of pages, including the reserved ones; `longest`: maximum pages of a sequence."""
        self.rows: Tensor = torch.full((sequences, longest), ZERO_PAGE)
        self._tables: list[list[int]] = [[] for _ in range(sequences)]
        self._holders = [0] * count
        self._free = list(range(RESERVED_PAGES, count))  # a heap: lowest pages first, so that used pages stay together

    @property
    def free(self) -> int:
        """Number of unused pages."""
        return len(self._free)

    def extend(self, wanted: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        """Allocates pages for each (sequence, start, tokens). Returns the (from, to) pages to copy before the step.

        Raises:
            OutOfCells: too few free pages; nothing was changed.
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
        """Replaces the pages of `target` by the pages of the first `tokens` of `source`, which both then hold."""
        self.cut(target, 0)
        shared = self._tables[source][: -(-tokens // BLOCK)]
        for page in shared:
            self._holders[page] += 1
        self._tables[target] = shared
        self._write(target, 0)

    def cut(self, sequence: int, tokens: int) -> None:
        """Frees the pages of a sequence after its first `tokens`."""
        table = self._tables[sequence]
        keep = -(-tokens // BLOCK)
        for page in table[keep:]:
            self._holders[page] -= 1
            if not self._holders[page]:
                heapq.heappush(self._free, page)
        self.rows[sequence, keep : len(table)] = ZERO_PAGE
        del table[keep:]

    def _write(self, sequence: int, place: int) -> None:
        """Copies a table, which changed from `place` on, to `rows`."""
        table = self._tables[sequence]
        self.rows[sequence, place : len(table)] = torch.tensor(table[place:])

    def _missing(self, sequence: int, start: int, tokens: int) -> int:
        """Counts the new pages that a sequence needs for `tokens` from `start` on, including a copy."""
        table = self._tables[sequence]
        place = start // BLOCK
        copied = place < len(table) and self._holders[table[place]] > 1
        return max(0, -(-(start + tokens) // BLOCK) - len(table)) + copied

    def _take(self) -> int:
        page = heapq.heappop(self._free)
        self._holders[page] = 1
        return page
