"""Ollama's official npm package against the real stack; the tests themselves are in ollama.test.mjs."""

from __future__ import annotations

import pytest

from tests.clients.node import run_node_tests
from tests.minilm import ENCODER
from tests.stack import MODEL, Stack

pytestmark = pytest.mark.slow


def test_ollama_package(stack: Stack) -> None:
    host = f"http://127.0.0.1:{stack.port}"
    run_node_tests("ollama.test.mjs", ALLM_HOST=host, ALLM_MODEL=MODEL, ALLM_ENCODER=ENCODER)
