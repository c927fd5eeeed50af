"""What tests that register models have each for itself, of the stacks and the hub in tests/presets.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loopback_hub import LoopbackHub
from tests.operator_side import Operator


@pytest.fixture
def hub(session_hub: LoopbackHub) -> Iterator[LoopbackHub]:
    """The hub, without faults of an earlier test."""
    session_hub.heal()
    session_hub.requests.clear()
    session_hub.sent = 0
    yield session_hub
    session_hub.heal()


@pytest.fixture
def operator(shared_operator: Operator) -> Iterator[Operator]:
    """Somebody who manages models over REST; what a test registers is removed after it."""
    before = set(shared_operator.all())
    yield shared_operator
    for model_id in set(shared_operator.all()) - before:
        shared_operator.delete(model_id)


@pytest.fixture
def folder(operator: Operator, request: pytest.FixtureRequest) -> Path:
    """An empty folder below ALLM_MODEL_ROOTS."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    path = operator.root / name
    path.mkdir()
    return path
