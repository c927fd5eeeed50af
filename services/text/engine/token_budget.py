"""Token budget of a text model's step: as many tokens as this machine computes in a bounded time, by measurement.

Running answers get one token each; `share_out` divides the rest among prompts. While answers run, prompts get only as
many tokens as keep the time of the step near that of others (`EvenGaps`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from services.text.engine.messages import EngineOptions
from services.text.engine.sequence import Sequence
from services.worker.loop import Pace

LEAST_TOKENS = 16  # of a step
TRIED_TOKENS = 64  # of the step that measures the model's speed
# Of a step without a GPU. More tokens are no faster, and every request in a step waits for all of it.
CPU_TOKENS = 512
EVEN = 2.9  # most that a step with prompt tokens should take of the median of recent steps
# Prompt tokens. On the processor llama.cpp's flash attention computes 64 of a part together, also the last few (65 take
# a quarter longer than 64), and is slow for fewer. The first token of a part is computed with the answers.
TILE = 64
LEAST_CHUNK = TILE + 1
# Prompt tokens in a step whose logprobs are asked for: each needs a whole row of logits.
MOST_SCORED = 64
OLDEST_TURN = 4  # of so many steps with a small budget, one is the oldest prompt's
RECENT = 192  # steps
_WEIGHT = 0.2  # of a new step in a mean


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


class EvenGaps:
    """The prompt tokens of a step in which answers run.

    Every answer waits for the whole step. The budget follows from measured times: of recent steps with answers, of
    steps without prompt tokens, and of one prompt token. If most steps compute prompts, then their time is the usual
    one, and the budget grows: large parts of prompts take less time for each token.
    """

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=RECENT)  # seconds
        self._plain = 0.0  # mean seconds of a step without prompt tokens
        self._token = 0.0  # mean seconds of a prompt token

    def took(self, answers: int, prompt_tokens: int, seconds: float) -> None:
        """Records a step. The first prompt tokens are computed before there is an answer."""
        plain = max(0.0, seconds - prompt_tokens * self._token)
        if answers:
            if not self._steps:  # at the start as if prompts were rare
                self._steps.extend([plain] * (RECENT // 2))
            self._steps.append(seconds)
            self._plain = _mean(self._plain, plain)
        if 2 * prompt_tokens >= LEAST_CHUNK:
            alone = seconds - self._plain if answers else seconds
            self._token = _mean(self._token, max(alone, seconds / 2) / prompt_tokens)

    @property
    def limit(self) -> int:
        """Most prompt tokens of a step in which answers run."""
        if not self._steps or not self._token:
            return LEAST_CHUNK
        fitting = int((EVEN * median(self._steps) - self._plain) / self._token)
        return max(LEAST_CHUNK, (fitting - 1) // TILE * TILE + 1)


def _mean(before: float, new: float) -> float:
    return before + _WEIGHT * (new - before) if before else new


def share_out(
    prompts: list[Sequence], budget: int, waits: Callable[[Sequence], bool], turn: int = 0
) -> list[tuple[Sequence, int]]:
    """Divides a step's `budget` of tokens among prompts. Returns (prompt, tokens) pairs.

    Shortest prompts come first, for early first tokens; the oldest always gets a quarter. Of a budget that is too small
    for parts, the oldest gets all in every fourth `turn`. A prompt that `waits` for another one's prefix gets nothing.
    Scored prompts get MOST_SCORED together. Inseparable tokens fit into the budget, or are the oldest's.
    """
    oldest = min(prompts, key=lambda sequence: sequence.arrival)
    shares: list[tuple[Sequence, int]] = []
    reserved, scored = max(1, budget // OLDEST_TURN), MOST_SCORED
    if LEAST_CHUNK <= budget < OLDEST_TURN * LEAST_CHUNK:
        reserved = 0 if turn % OLDEST_TURN else budget
    reserved = max(reserved, oldest.inseparable)
    for sequence in sorted(prompts, key=lambda sequence: (sequence.missing, sequence.arrival)):
        least = sequence.inseparable
        available = max(budget, least) if sequence is oldest else budget - min(reserved, oldest.missing)
        available = min(available, scored) if sequence.scoring else available
        if available <= 0 or available < least or waits(sequence) or sequence.unseen:
            continue
        share = min(sequence.ahead, available)
        if shares and share < sequence.ahead and share < LEAST_CHUNK <= shares[0][1]:
            continue  # too little beside a whole part
        shares.append((sequence, share))
        budget -= share
        scored -= share if sequence.scoring else 0
        if sequence is oldest:
            reserved = 0
    return shares
