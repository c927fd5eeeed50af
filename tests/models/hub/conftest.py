"""The hub for the tests of its clients."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from huggingface_hub import close_session, constants

from tests.loopback_hub import LoopbackHub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """Yields an empty hub, as if HF_ENDPOINT pointed to it."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)  # the user may be logged in
    with LoopbackHub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        yield running
    close_session()
