"""One hub and one stack with two folders of models for all tests that only register."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_hub import LoopbackHub
from operator_side import Operator, operating


@pytest.fixture(scope="session")
def session_hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture
def hub(session_hub: LoopbackHub) -> Iterator[LoopbackHub]:
    """The hub, without faults of an earlier test."""
    session_hub.heal()
    session_hub.requests.clear()
    session_hub.sent = 0
    yield session_hub
    session_hub.heal()


@pytest.fixture(scope="session")
def shared_operator(session_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with operating(tmp_path_factory.mktemp("allm"), session_hub) as operator:
        yield operator


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
