"""One Envoy with a scripted text service and a scripted catalog, shared by most gateway tests."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.gateway.envoy_process import LISTED_HOST, LISTED_ORIGIN, RunningGateway, gateway_settings, running_gateway
from tests.gateway.scripted_catalog import ScriptedCatalog
from tests.gateway.upstream import Upstream


@pytest.fixture(scope="session")
def socket_folder() -> Iterator[Path]:
    """Creates a folder with a short path: pytest's own paths are too long for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="allm-test-") as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Shared:
    """An Envoy and the services behind it."""

    gateway: RunningGateway
    upstream: Upstream
    catalog: ScriptedCatalog


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared(socket_folder: Path) -> AsyncIterator[Shared]:
    upstream, catalog = Upstream(), ScriptedCatalog()
    await upstream.start(text := f"unix:{socket_folder / 'text.sock'}")
    await catalog.start(models := f"unix:{socket_folder / 'catalog.sock'}")
    settings = gateway_settings(allowed_hosts=(LISTED_HOST,), cors_origins=(LISTED_ORIGIN,))
    try:
        async with running_gateway(socket_folder, (text,), models, settings) as gateway:
            yield Shared(gateway, upstream, catalog)
    finally:
        await upstream.stop()
        await catalog.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(shared: Shared) -> RunningGateway:
    await shared.gateway.finds_all_healthy()
    return shared.gateway


@pytest.fixture
def upstream(shared: Shared) -> Upstream:
    """Returns the upstream, with its script and recorded calls reset."""
    shared.upstream.forget()
    return shared.upstream


@pytest.fixture
def catalog(shared: Shared) -> ScriptedCatalog:
    """Returns the catalog, with its script and recorded calls reset."""
    shared.catalog.forget()
    return shared.catalog
