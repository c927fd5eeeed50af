"""Anthropic's official npm SDK against the real stack; the tests themselves are in anthropic.test.mjs."""

from __future__ import annotations

import pytest

from tests.clients.node import run_node_tests
from tests.stack import MODEL, Stack

pytestmark = pytest.mark.slow


def test_anthropic_sdk(stack: Stack) -> None:
    run_node_tests("anthropic.test.mjs", ALLM_BASE_URL=stack.base_url.removesuffix("/v1"), ALLM_MODEL=MODEL)
