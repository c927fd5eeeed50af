"""How many tokens a step of a text model has: as many as this machine computes in a bounded time, which is tried."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.text.engine.messages import EngineOptions
from services.worker.pace import Pace

LEAST_TOKENS = 16  # of a step
TRIED_TOKENS = 64  # of the step that shows how fast the model is
# Of a step without a GPU: more compute no faster, and all whose prompts are in a step wait for the whole of it.
CPU_TOKENS = 512


def step_tokens(options: EngineOptions) -> int:
    """Most tokens of a step, however fast the machine is."""
    return options.batch_tokens if options.gpu else min(options.batch_tokens, CPU_TOKENS)


def step_pace(options: EngineOptions, context_tokens: int, compute: Callable[[int], None]) -> Pace:
    """Bounds steps by what a first one takes. `compute` computes a prompt of so many tokens and forgets it.

    The step before it pays for what only the first does, such as bringing the weights into memory: loading has a time
    limit of its own.
    """
    most = step_tokens(options)
    pace = Pace(LEAST_TOKENS, most)
    for tokens in (LEAST_TOKENS, TRIED_TOKENS):
        count = min(tokens, most, context_tokens - 1)
        started = time.monotonic()
        compute(count)
        took = time.monotonic() - started
    pace.took(count, took)
    return pace
