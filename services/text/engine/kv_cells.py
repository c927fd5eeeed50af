"""Who holds which cells of the key-value cache.

A cell holds the key and value of one token. Cells are counted in blocks of `BLOCK` tokens, because only whole blocks
are ever shared between sequences; what a sequence has beyond its last whole block is its own. The counts are allm's:
they decide what is admitted and evicted, before the runtime could run out.
"""

from __future__ import annotations

BLOCK = 16


class Block:
    """`BLOCK` cells that one or more sequences hold."""

    __slots__ = ("cached", "running")

    def __init__(self) -> None:
        self.running = 0  # running requests that hold it
        self.cached = 0  # entries of the prefix cache that hold it


class Holding:
    """The cells of one sequence: whole blocks, perhaps shared, and an open tail of its own."""

    __slots__ = ("blocks", "tail")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.tail = 0


class CellLedger:
    """Counts cells: `active` are held by running requests, `cached` by the prefix cache alone."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.active = 0
        self.cached = 0

    @property
    def free(self) -> int:
        """Cells that nobody holds."""
        return self.total - self.active - self.cached

    def grow(self, holding: Holding, tokens: int) -> None:
        """A running sequence computed `tokens` more."""
        self.active += tokens
        holding.tail += tokens
        while holding.tail >= BLOCK:
            block = Block()
            block.running = 1
            holding.blocks.append(block)
            holding.tail -= BLOCK

    def share(self, source: Holding, target: Holding, tokens: int) -> None:
        """A running sequence that holds nothing takes over the first `tokens` (whole blocks) of another."""
        for block in source.blocks[: tokens // BLOCK]:
            if not block.running:
                self.cached -= BLOCK
                self.active += BLOCK
            block.running += 1
            target.blocks.append(block)

    def release(self, holding: Holding) -> None:
        """A running sequence gives up all its cells."""
        self.active -= holding.tail
        for block in holding.blocks:
            block.running -= 1
            if not block.running:
                self.active -= BLOCK
                if block.cached:
                    self.cached += BLOCK
        holding.blocks, holding.tail = [], 0

    def keep(self, holding: Holding) -> Holding:
        """The prefix cache takes over the whole blocks of a running sequence, which gives up the rest."""
        kept = Holding()
        kept.blocks = list(holding.blocks)
        for block in kept.blocks:
            block.cached += 1
        self.release(holding)
        return kept

    def keep_whole(self, holding: Holding) -> Holding:
        """The prefix cache takes a copy of all that a running sequence holds: its blocks shared, its tail once more."""
        kept = Holding()
        kept.blocks, kept.tail = list(holding.blocks), holding.tail
        for block in kept.blocks:
            block.cached += 1
        self.cached += kept.tail
        return kept

    def forget(self, holding: Holding) -> None:
        """The prefix cache drops an entry."""
        self.cached -= holding.tail
        for block in holding.blocks:
            block.cached -= 1
            if not block.cached and not block.running:
                self.cached -= BLOCK
        holding.blocks, holding.tail = [], 0
