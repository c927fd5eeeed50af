"""Token budget of a text model's step: as many tokens as this machine computes in a bounded time, by measurement."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.text.engine.messages import EngineOptions
from services.worker.loop import Pace

LEAST_TOKENS = 16  # of a step
TRIED_TOKENS = 64  # of the step that measures the model's speed
# Of a step without a GPU. More tokens are no faster, and every request in a step waits for all of it.
CPU_TOKENS = 512


def step_tokens(options: EngineOptions) -> int:
    """Returns the maximum tokens of a step, regardless of the machine's speed."""
    return options.batch_tokens if options.gpu else min(options.batch_tokens, CPU_TOKENS)


def step_pace(options: EngineOptions, context_tokens: int, compute: Callable[[int], None]) -> Pace:
    """Measures a step and returns the pace. `compute(tokens)` computes a prompt of that length and drops it.

    An unmeasured step comes first and pays for one-time work, such as reading the weights into memory. Loading has its
    own time limit.
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
