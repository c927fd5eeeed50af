"""The official npm `openai` SDK against the real stack; the tests themselves are in openai.test.mjs."""

from __future__ import annotations

import pytest

from tests.clients.node import run_node_tests
from tests.stack import MODEL, Stack

pytestmark = pytest.mark.slow


def test_openai_sdk(stack: Stack) -> None:
    run_node_tests("openai.test.mjs", ALLM_BASE_URL=stack.base_url, ALLM_MODEL=MODEL)
