"""The demo model, loaded once for all tests of the llama_cpp runtime."""

from __future__ import annotations

import pytest

from services.text.engine.runtimes.llama_cpp import LlamaEngine
from tests.demo_model import demo_model
from tests.text.engine.session import options


@pytest.fixture(scope="package")
def engine() -> LlamaEngine:
    """Default engine: one unified cache that eight requests share."""
    fractions: list[float] = []
    loaded = LlamaEngine(options(demo_model()), fractions.append)
    assert fractions
    assert fractions[-1] == 1.0
    return loaded
