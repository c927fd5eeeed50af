"""A loopback hub for the huggingface_hub library in this process, and a service that prepares models."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from huggingface_hub import close_session, constants

from tests.loopback_hub import LoopbackHub
from tests.provision.preparing import Service


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """Yields an empty hub, as if HF_ENDPOINT pointed to it."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)  # the user may be logged in
    with LoopbackHub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        yield running
    close_session()


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(tmp_path / "home")
    yield service
    await service.model_set.close()
    await service.manager.close()
