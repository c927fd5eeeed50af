"""Fixtures that every test may use. That this file is here puts `tests/` on the import path."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from demo_model import demo_model
from minilm import ENCODER, minilm
from stack import MODEL, SPEECH_MODEL, Stack, running_stack
from whisper_weights import tiny_en_ct2

# Models that run in the tests' own process wait as those in workers do, or they collapse beside whatever else runs: GNU
# OpenMP reads this when it is loaded (services/residency/environment.py).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# What is started in the background of a shell has SIGINT ignored, and its children too; some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for all tests that only use it; who stops or kills parts of one starts one of its own."""
    models = f"{MODEL}={demo_model()},{ENCODER}={minilm()},{SPEECH_MODEL}={tiny_en_ct2()}"
    with running_stack(tmp_path_factory.mktemp("allm"), ALLM_MODELS=models, ALLM_AUDIO_REPLICAS="1") as running:
        yield running
