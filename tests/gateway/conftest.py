"""One Envoy with one scripted upstream for all tests of the gateway that need no other."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from envoy_process import LISTED_HOST, LISTED_ORIGIN, RunningGateway, gateway_settings, running_gateway
from upstream import Upstream, two_events


@pytest.fixture(scope="session")
def socket_folder() -> Iterator[Path]:
    """A folder with a short path: pytest's own are too long for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="allm-test-") as folder:
        yield Path(folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared(socket_folder: Path) -> AsyncIterator[tuple[RunningGateway, Upstream]]:
    upstream = Upstream()
    address = f"unix:{socket_folder / 'text.sock'}"
    await upstream.start(address)
    settings = gateway_settings(allowed_hosts=(LISTED_HOST,), cors_origins=(LISTED_ORIGIN,))
    async with running_gateway(socket_folder, address, settings) as gateway:
        yield gateway, upstream
    await upstream.stop()


@pytest.fixture
def gateway(shared: tuple[RunningGateway, Upstream]) -> RunningGateway:
    return shared[0]


@pytest.fixture
def upstream(shared: tuple[RunningGateway, Upstream]) -> Upstream:
    """The upstream, as if nobody had called it before."""
    upstream = shared[1]
    upstream.chat = two_events
    upstream.metadata.clear()
    upstream.bodies.clear()
    return upstream
