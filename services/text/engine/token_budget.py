"""Token budget of a text model's step: as many tokens as this machine computes in a bounded time, by measurement.

Running answers get one token each; `share_out` divides the rest among prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from services.text.engine.messages import EngineOptions
from services.text.engine.sequence import Sequence
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


def share_out(prompts: list[Sequence], budget: int, waits: Callable[[Sequence], bool]) -> list[tuple[Sequence, int]]:
    """Divides a step's `budget` of tokens among prompts. Returns (prompt, tokens) pairs.

    Shortest prompts come first, for early first tokens; the oldest always gets a quarter. A prompt that `waits` for
    another one's prefix gets nothing.
    """
    oldest = min(prompts, key=lambda sequence: sequence.arrival)
    shares: list[tuple[Sequence, int]] = []
    reserved = max(1, budget // 4)
    for sequence in sorted(prompts, key=lambda sequence: (sequence.missing, sequence.arrival)):
        available = budget if sequence is oldest else budget - min(reserved, oldest.missing)
        if available <= 0 or waits(sequence):
            continue
        share = min(sequence.ahead, available)
        shares.append((sequence, share))
        budget -= share
        if sequence is oldest:
            reserved = 0
    return shares
