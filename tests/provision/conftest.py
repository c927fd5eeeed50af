"""A loopback hub for the huggingface_hub library in this process, and a service that prepares models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.loopback_hub import LoopbackHub, hub_of_this_process
from tests.provision.preparing import Service


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """Yields an empty hub, as if HF_ENDPOINT pointed to it."""
    with hub_of_this_process(monkeypatch) as running:
        yield running


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(tmp_path / "home")
    yield service
    await service.model_set.close()
    await service.manager.close()
