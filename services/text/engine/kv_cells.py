"""The ledger of KV cells: which sequence holds which cells of the key-value cache.

A cell holds the key and value of one token. Cells are counted in blocks of `BLOCK` tokens, because sequences share only
whole blocks; the tail after the last whole block belongs to one sequence. The counts are allm's own: they decide
admission and eviction before the runtime runs out of cells. Runtimes and the memory estimate compute the size of the
cache with the same functions.
"""

from __future__ import annotations

from services.text.engine.messages import EngineOptions

DEFAULT_CONTEXT = 32_768  # maximum with `context_tokens=0`: longer contexts are opt-in
CELLS_PER_SEQUENCE = 512  # of each concurrent request with `kv_tokens=0`
BLOCK = 16
CACHED_SHARE = 4  # divisor
# Of the layout of llama.cpp's cache with a stream for each sequence, on the processor.
STREAM_ENTRIES = 32  # streams for the prefix cache
STREAM_CELL_BYTES = 52  # llama.cpp's record of a cell, used or not


def context_size(options: EngineOptions, trained: int) -> int:
    """Returns the tokens of a request's context. `trained`: the context the model was trained for; 0: unknown."""
    return min(options.context_tokens or DEFAULT_CONTEXT, trained or DEFAULT_CONTEXT)


def cache_cells(options: EngineOptions, context: int) -> int:
    """Returns the cells of the whole cache: at least one full context, at most as many as all requests can use.

    With `kv_tokens=0` that is CELLS_PER_SEQUENCE for each request, or one context if that is more.
    """
    cells = options.kv_tokens or CELLS_PER_SEQUENCE * options.max_sequences
    return min(max(cells, context), context * options.max_sequences)


def kept_cells(cells: int, context: int, *, shared: bool) -> int:
    """Returns the cells that ended requests may keep in a cache of `cells`. Running requests take them when needed.

    Every used cell of llama.cpp's unified cache makes the attention of every step longer, so it keeps a quarter. But
    long contexts are for conversations such as those of coding agents, which send tens of thousands of tokens with each
    turn: they cost more to compute again than to keep.
    """
    return cells // CACHED_SHARE if shared and context <= DEFAULT_CONTEXT else cells


def has_streams(options: EngineOptions, context: int, *, recurrent: bool) -> bool:
    """Returns whether llama.cpp's cache has a stream of the whole context for each sequence, where the system can."""
    return not options.gpu and not recurrent and context <= DEFAULT_CONTEXT


def stream_count(options: EngineOptions) -> int:
    """Returns the number of streams of llama.cpp's cache on the processor."""
    return options.max_sequences + (STREAM_ENTRIES if options.prefix_cache else 0)


class Block:
    """`BLOCK` cells that one or more sequences hold."""

    __slots__ = ("cached", "running")

    def __init__(self) -> None:
        self.running = 0  # running requests that hold it
        self.cached = 0  # entries of the prefix cache that hold it


class Holding:
    """The cells of one sequence: whole blocks, possibly shared, and an unshared tail."""

    __slots__ = ("blocks", "tail")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.tail = 0


class CellLedger:
    """Counts of cells: running requests hold `active` cells, only the prefix cache holds `cached` cells."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.active = 0
        self.cached = 0

    @property
    def free(self) -> int:
        """Number of unused cells."""
        return self.total - self.active - self.cached

    def grow(self, holding: Holding, tokens: int) -> None:
        """Adds `tokens` that a running sequence has computed."""
        self.active += tokens
        holding.tail += tokens
        while holding.tail >= BLOCK:
            block = Block()
            block.running = 1
            holding.blocks.append(block)
            holding.tail -= BLOCK

    def share(self, source: Holding, target: Holding, tokens: int) -> None:
        """Shares the first `tokens` (whole blocks) of `source` with `target`, a running sequence without cells."""
        for block in source.blocks[: tokens // BLOCK]:
            if not block.running:
                self.cached -= BLOCK
                self.active += BLOCK
            block.running += 1
            target.blocks.append(block)

    def release(self, holding: Holding) -> None:
        """Frees all cells of a running sequence."""
        self.active -= holding.tail
        for block in holding.blocks:
            block.running -= 1
            if not block.running:
                self.active -= BLOCK
                if block.cached:
                    self.cached += BLOCK
        holding.blocks, holding.tail = [], 0

    def keep(self, holding: Holding) -> Holding:
        """Moves the whole blocks of a running sequence to the prefix cache and frees its tail."""
        kept = Holding()
        kept.blocks = list(holding.blocks)
        for block in kept.blocks:
            block.cached += 1
        self.release(holding)
        return kept

    def keep_whole(self, holding: Holding) -> Holding:
        """Copies all cells of a running sequence to the prefix cache: blocks are shared, the tail is counted twice."""
        kept = Holding()
        kept.blocks, kept.tail = list(holding.blocks), holding.tail
        for block in kept.blocks:
            block.cached += 1
        self.cached += kept.tail
        return kept

    def forget(self, holding: Holding) -> None:
        """Frees the cells of an entry that the prefix cache drops."""
        self.cached -= holding.tail
        for block in holding.blocks:
            block.cached -= 1
            if not block.cached and not block.running:
                self.cached -= BLOCK
        holding.blocks, holding.tail = [], 0
