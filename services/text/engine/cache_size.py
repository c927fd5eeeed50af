"""Size of the key-value cache: for the runtimes that allocate it and the service that estimates its memory."""

from __future__ import annotations

from services.text.engine.messages import EngineOptions

DEFAULT_CONTEXT = 32_768  # maximum with `context_tokens=0`: longer contexts are opt-in
CELLS_PER_SEQUENCE = 512  # of each concurrent request with `kv_tokens=0`


def context_size(options: EngineOptions, trained: int) -> int:
    """Returns the tokens of a request's context. `trained`: the context the model was trained for; 0: unknown."""
    return min(options.context_tokens or DEFAULT_CONTEXT, trained or DEFAULT_CONTEXT)


def cache_cells(options: EngineOptions, context: int, derived: int = 0) -> int:
    """Returns the cells of the whole cache: at least one full context, at most as many as all requests can use.

    `derived`: the size with `kv_tokens=0`; 0: CELLS_PER_SEQUENCE for each request.
    """
    cells = options.kv_tokens or derived or CELLS_PER_SEQUENCE * options.max_sequences
    return min(max(cells, context), context * options.max_sequences)
