"""The hub for the tests of its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loopback_hub import LoopbackHub, hub_of_this_process


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """Yields an empty hub, as if HF_ENDPOINT pointed to it."""
    with hub_of_this_process(monkeypatch) as running:
        yield running
