"""How large a key-value cache is made: for the runtimes that make it, and for the service that asks for the memory."""

from __future__ import annotations

from services.text.engine.messages import EngineOptions

DEFAULT_CONTEXT = 32_768  # what `context_tokens=0` takes at the most: a longer context must be asked for
CELLS_PER_SEQUENCE = 512  # what `kv_tokens=0` gives each concurrent request


def context_size(options: EngineOptions, trained: int) -> int:
    """Tokens of a request's context. `trained`: what the model was made for; 0: it does not say."""
    return min(options.context_tokens or DEFAULT_CONTEXT, trained or DEFAULT_CONTEXT)


def cache_cells(options: EngineOptions, context: int, derived: int = 0) -> int:
    """Cells of the whole cache: one full context at least, and never more than all requests could use.

    `derived`: what `kv_tokens=0` takes instead of CELLS_PER_SEQUENCE for each request.
    """
    cells = options.kv_tokens or derived or CELLS_PER_SEQUENCE * options.max_sequences
    return min(max(cells, context), context * options.max_sequences)
