"""The Vercel AI SDK against the real stack; the tests themselves are in vercel.test.mjs."""

from __future__ import annotations

import pytest

from tests.clients.node import run_node_tests
from tests.stack import MODEL, Stack

pytestmark = pytest.mark.slow


def test_vercel_ai_sdk(stack: Stack) -> None:
    run_node_tests("vercel.test.mjs", ALLM_BASE_URL=stack.base_url, ALLM_MODEL=MODEL)
