from __future__ import annotations

from collections.abc import Iterator

import pytest
from huggingface_hub import close_session, constants

from tests.loopback_hub import LoopbackHub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """Replaces the real hub with one on loopback."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with LoopbackHub() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.endpoint)
        yield served
    close_session()
