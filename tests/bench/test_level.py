"""Percentiles, and the figures computed from answers."""

from __future__ import annotations

import math

import pytest

from bench.chat import Answer
from bench.level import Level, Spread, percentile, summarise
from bench.noise import Noise, NoiseMeter
from bench.prompts import PromptSet
from tests.case import case


def test_percentile() -> None:
    for values, percent, expected in [
        ([3.0], 50, 3.0),
        ([1.0, 2.0], 50, 1.5),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.5),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 95, 4.8),
        ([float(n) for n in range(101)], 95, 95.0),
        ([5.0, 1.0], 0, 1.0),
        ([5.0, 1.0], 100, 5.0),
    ]:
        with case(values=values, percent=percent, expected=expected):
            assert percentile(values, percent) == pytest.approx(expected)


def test_percentile_of_nothing() -> None:
    assert math.isnan(percentile([], 50))


def test_spread_is_in_milliseconds() -> None:
    assert Spread.of([0.001, 0.002, 0.003]) == Spread(p50=pytest.approx(2), p95=pytest.approx(2.9), max=3.0)


def test_figures_of_known_times() -> None:
    def answer(sent: float, *times: float) -> Answer:
        one = Answer(sent)
        one.times, one.completion_tokens, one.prompt_tokens, one.done = list(times), len(times), 10, True
        one.finish(len(times))
        return one

    bad = answer(0.0, 1.0)
    bad.fail("lost")
    level = Level(PromptSet.UNIQUE, 2, 3, 0)
    noise = Noise(steal_percent=1.0, other_percent=2.0, client_cpu_s=0.007, server_cpu_s=0.6)
    result = summarise(level, [answer(0.0, 0.1, 0.2, 0.4), answer(1.0, 1.3, 1.4, 1.5), bad], 2.0, noise)
    assert (result.output_tokens, result.tokens_per_s, result.errors) == (6, 3.0, {"lost": 1})
    assert result.ttft_ms == Spread(p50=pytest.approx(200), p95=pytest.approx(290), max=pytest.approx(300))
    assert result.gap_ms == Spread(p50=pytest.approx(100), p95=pytest.approx(185), max=pytest.approx(200))
    assert result.client_cpu_us_per_event == pytest.approx(1000)
    assert result.server_cpu_ms_per_token == pytest.approx(100)
    assert result.prompt_tokens == 10


def test_noise_counts_our_own_work() -> None:
    meter = NoiseMeter()
    sum(range(200_000))
    noise = meter.read()
    assert noise.client_cpu_s > 0
    assert noise.server_cpu_s == 0
    assert noise.steal_percent >= 0
