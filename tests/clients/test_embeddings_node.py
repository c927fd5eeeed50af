"""Embeddings with the official npm `openai` SDK and with gRPC for Node; the tests are in embeddings.test.mjs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.node import run_node_tests
from tests.minilm import ENCODER, SIZE
from tests.stack import Stack

pytestmark = pytest.mark.slow

PROTOS = Path(__file__).parents[2] / "protos"


def test_openai_sdk_and_grpc(stack: Stack) -> None:
    run_node_tests(
        "embeddings.test.mjs",
        ALLM_BASE_URL=stack.base_url,
        ALLM_GRPC=stack.grpc_address,
        ALLM_MODEL=ENCODER,
        ALLM_SIZE=str(SIZE),
        ALLM_PROTOS=str(PROTOS),
    )
