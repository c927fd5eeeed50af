"""Load on the batch loop inside this process, with the real llama_cpp runtime."""

from __future__ import annotations

import pytest

from bench.engine_load import Load, LoadError, measure, options, share
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from tests.demo_model import demo_model

CLIENTS = 2


@pytest.fixture(scope="module")
def engine() -> LlamaEngine:
    return LlamaEngine(options(str(demo_model()), CLIENTS, threads=2, context=64), lambda _: None)


def test_every_request_is_answered_and_counted_and_the_warm_up_is_not(engine: LlamaEngine) -> None:
    asked = options("", CLIENTS, threads=2, context=64)
    load = Load(CLIENTS, requests=5, warmup=3, prompt_tokens=8, output_tokens=4)
    figures = measure(engine, asked, load, "seed")
    assert figures.tokens == 5 * 4
    assert len(figures.first) == 5
    assert len(figures.gaps) == 5 * 3
    assert all(seconds > 0 for seconds in (*figures.first, *figures.gaps, figures.cpu))
    # At best both clients are in every step; at worst they alternate.
    assert 4 * 3 <= figures.steps <= 5 * 5
    assert figures.tokens_per_second == pytest.approx(20 / figures.wall)
    assert figures.line().startswith("  2 clients ")


def test_a_refusal_is_no_figure(engine: LlamaEngine) -> None:
    asked = options("", CLIENTS, threads=2, context=64)
    with pytest.raises(LoadError, match="OUT_OF_MEMORY: the key-value cache has no cells left"):
        measure(engine, asked, Load(1, 1, 0, prompt_tokens=200, output_tokens=1), "seed")


def test_the_share_of_few_values() -> None:
    assert share([], 0.5) == 0.0
    assert share([3.0, 1.0, 2.0], 0.5) == 2.0
    assert share([3.0, 1.0, 2.0], 1.0) == 3.0
