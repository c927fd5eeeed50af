from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loopback_hub import LoopbackHub, hub_of_this_process


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """Replaces the real hub with one on loopback."""
    with hub_of_this_process(monkeypatch) as running:
        yield running
