"""The supervisor's admin calls to a running Envoy, and a drain."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.api.httpbody_pb2 import HttpBody

from gateway.admin import AdminError, EnvoyAdmin
from tests.gateway.envoy_process import NOWHERE, RunningGateway, gateway_settings, running_gateway
from tests.gateway.upstream import Upstream, event
from tests.gateway.wire import posting, send

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/v1/chat/completions"


async def test_it_is_for_this_user_only(gateway: RunningGateway) -> None:
    assert await gateway.admin.is_ready()
    assert stat.S_IMODE(gateway.admin.socket.stat().st_mode) == 0o600


async def test_without_envoy(tmp_path: Path) -> None:
    admin = EnvoyAdmin(tmp_path / "none.sock")
    assert not await admin.is_ready()
    with pytest.raises(AdminError):
        await admin.active_requests()


async def test_a_drain_lets_running_requests_end(
    gateway: RunningGateway, upstream: Upstream, socket_folder: Path, tmp_path: Path
) -> None:
    go_on = asyncio.Event()

    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        yield event("first")
        await go_on.wait()
        yield event("last")

    upstream.chat = chat
    folder = socket_folder / "drained"
    folder.mkdir()
    text = f"unix:{socket_folder / 'text.sock'}"
    async with asyncio.timeout(60), running_gateway(folder, (text,), NOWHERE, gateway_settings()) as drained:
        async with posting(drained.port, CHAT, b"{}") as reader:
            await reader.readuntil(b'data: "first"\n\n')
            assert await drained.admin.active_requests() == 1
            await drained.admin.drain()
            while await _accepts(drained.port):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
            while await drained.admin.active_requests() != 1:  # noqa: ASYNC110 - those of a moment ago may still be counted
                await asyncio.sleep(0.05)
            go_on.set()
            await reader.readuntil(b'data: "last"\n\n')
        while await drained.admin.active_requests():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


async def _accepts(port: int) -> bool:
    try:
        await send(port, "GET", "/healthz")
    except OSError:
        return False
    return True
