"""Per-test fixtures of the registration tests, on top of the stacks and the hub in tests/presets.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator


@pytest.fixture
def hub(session_hub: LoopbackHub) -> Iterator[LoopbackHub]:
    """Yields the hub, without faults and counts of an earlier test."""
    session_hub.heal()
    session_hub.requests.clear()
    session_hub.sent = 0
    yield session_hub
    session_hub.heal()


@pytest.fixture
def operator(shared_operator: Operator) -> Iterator[Operator]:
    """Yields an operator who manages models over REST; deletes the models of the test afterwards."""
    before = set(shared_operator.all())
    yield shared_operator
    for model_id in set(shared_operator.all()) - before:
        shared_operator.delete(model_id)


@pytest.fixture
def folder(operator: Operator, request: pytest.FixtureRequest) -> Path:
    """Creates an empty folder below ALLM_MODEL_ROOTS."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    path = operator.root / name
    path.mkdir()
    return path
