"""Fixtures that every test may use. That this file is here puts `tests/` on the import path."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from demo_model import demo_model
from minilm import ENCODER, minilm
from stack import IMAGE_MODEL, MODEL, SPEECH_MODEL, Stack, running_stack
from whisper_weights import tiny_en_ct2

# Models that run in the tests' own process wait as those in workers do, or they collapse beside whatever else runs: GNU
# OpenMP reads this when it is loaded (services/residency/environment.py).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# What is started in the background of a shell has SIGINT ignored, and its children too; some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHAPES = Path(__file__).parents[1] / "shapes_sd" / "weights"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is imported becomes garbage: looking for it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, those with most of them before the others.

    `make test` deals out whole files in this order. What is left for the end is short, so its processes end together.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for all tests that only use it; who stops or kills parts of one starts one of its own."""
    models = f"{MODEL}={demo_model()},{ENCODER}={minilm()},{SPEECH_MODEL}={tiny_en_ct2()},{IMAGE_MODEL}={SHAPES}"
    settings = {"ALLM_MODELS": models, "ALLM_AUDIO_REPLICAS": "1", "ALLM_IMAGE_REPLICAS": "1"}
    with running_stack(tmp_path_factory.mktemp("allm"), **settings) as running:
        yield running
