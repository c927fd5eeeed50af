"""One level of load and the figures of its answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.chat import Answer
from bench.noise import Noise
from bench.prompts import PromptSet


@dataclass(frozen=True, slots=True)
class Level:
    """A number of clients that each send their next request as soon as the last one is answered."""

    prompt_set: PromptSet
    concurrency: int
    requests: int  # measured ones
    warmup: int  # requests before the measured ones


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of a duration in milliseconds."""

    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Computes the spread of durations in seconds."""
        return cls(*(1000 * percentile(seconds, percent) for percent in (50, 95, 100)))


@dataclass(frozen=True, slots=True)
class LevelResult:
    """The figures of one level."""

    prompt_set: PromptSet
    concurrency: int
    requests: int
    wall_s: float  # from the first measured request's start to the end of the last answer
    output_tokens: int  # of answers without an error
    tokens_per_s: float
    ttft_ms: Spread  # from the start of the request, including the connection, to the first text
    gap_ms: Spread  # between two events with text of one answer
    prompt_tokens: float  # mean, as the server counted them
    cached_tokens: float  # mean of what the server reports from its prefix cache
    events: int  # events with text
    errors: dict[str, int]  # count by reason
    client_cpu_us_per_event: float
    server_cpu_ms_per_token: float
    noise: Noise


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value below which `percent` of the values lie, linearly interpolated; NaN without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(level: Level, answers: Sequence[Answer], wall_s: float, noise: Noise) -> LevelResult:
    """Computes the figures of a level's answers. An answer with an error counts only as an error."""
    good = [answer for answer in answers if answer.error is None]
    tokens = sum(answer.completion_tokens or 0 for answer in good)
    events = sum(len(answer.times) for answer in answers)
    return LevelResult(
        prompt_set=level.prompt_set,
        concurrency=level.concurrency,
        requests=len(answers),
        wall_s=wall_s,
        output_tokens=tokens,
        tokens_per_s=tokens / wall_s if wall_s else 0.0,
        ttft_ms=Spread.of([answer.times[0] - answer.sent for answer in good]),
        gap_ms=Spread.of([late - early for answer in good for early, late in pairwise(answer.times)]),
        prompt_tokens=_mean([answer.prompt_tokens for answer in good]),
        cached_tokens=_mean([answer.cached_tokens for answer in good]),
        events=events,
        errors=dict(Counter(answer.error for answer in answers if answer.error is not None)),
        client_cpu_us_per_event=1e6 * noise.client_cpu_s / events if events else 0.0,
        server_cpu_ms_per_token=1e3 * noise.server_cpu_s / tokens if tokens else 0.0,
        noise=noise,
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
