"""A typed gRPC client in Node against the real stack; the tests themselves are in grpc.test.mjs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.node import run_node_tests
from tests.stack import MODEL, Stack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_grpc_client(stack: Stack) -> None:
    protos = f"{ROOT / 'protos'}:{ROOT / 'third_party'}"
    run_node_tests("grpc.test.mjs", ALLM_GRPC=stack.grpc_address, ALLM_MODEL=MODEL, ALLM_PROTOS=protos)
