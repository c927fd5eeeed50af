"""The gateway's health endpoints: a real Envoy, with services that answer, hang, or are not there."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc

from tests.gateway.audio_upstream import AudioUpstream
from tests.gateway.envoy_process import NOWHERE, RunningGateway, gateway_settings, running_gateway
from tests.gateway.upstream import serve, text_upstream
from tests.gateway.wire import send

PATHS = ("/livez", "/readyz", "/readyz/text", "/readyz/audio", "/readyz/image", "/healthz", "/health")


@contextmanager
def hanging(path: str) -> Iterator[str]:
    """A process that hangs, for its callers: the kernel takes their connections, and nothing reads from them."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        yield f"unix:{path}"


@asynccontextmanager
async def authorizing(address: str) -> AsyncIterator[None]:
    """An authorizer that is healthy; no request here asks it."""
    server = grpc.aio.server()
    await serve(server, address)
    try:
        yield
    finally:
        await server.stop(0)


async def healthy(gateway: RunningGateway) -> set[str]:
    """Returns the endpoints that answer 200; all others answer 503."""
    replies = [await send(gateway.port, "GET", path) for path in PATHS]
    assert {reply.status for reply in replies} <= {200, 503}
    return {path for path, reply in zip(PATHS, replies, strict=True) if reply.status == 200}


async def until(gateway: RunningGateway, *paths: str) -> None:
    """Waits until these endpoints, and no others, answer 200."""
    async with asyncio.timeout(60):
        while await healthy(gateway) != set(paths):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


async def test_a_hung_text_service_does_not_take_audio_out() -> None:
    audio = AudioUpstream()
    with tempfile.TemporaryDirectory(prefix="allm-health-") as name, hanging(f"{name}/text.sock") as text:
        await audio.start(address := f"unix:{name}/audio.sock")
        try:
            async with running_gateway(Path(name), (text,), NOWHERE, gateway_settings(), (address,)) as gateway:
                await until(gateway, "/livez", "/readyz", "/readyz/audio")
        finally:
            await audio.stop()


async def test_without_the_authorizer_the_gateway_lives_and_admits_nobody() -> None:
    async with text_upstream("allm-health-") as (folder, _, text):
        path = f"{folder}/authorizer.sock"
        settings = gateway_settings(auth="keys", authorizer=f"unix:{path}")
        async with running_gateway(folder, (text,), NOWHERE, settings) as gateway:
            await until(gateway, "/livez")
            async with authorizing(f"unix:{path}"):
                await until(gateway, "/livez", "/readyz", "/readyz/text", "/healthz", "/health")
            with hanging(path):
                await until(gateway, "/livez")


async def test_a_gateway_that_drains_lives_and_is_not_ready() -> None:
    async with (
        text_upstream("allm-health-") as (folder, _, text),
        running_gateway(folder, (text,), NOWHERE, gateway_settings(auth="open")) as gateway,
    ):
        await until(gateway, "/livez", "/readyz", "/readyz/text", "/healthz", "/health")
        await gateway.admin.fail_health()
        await until(gateway, "/livez")


async def test_probes_need_no_key_and_pass_the_gate_of_hosts() -> None:
    with tempfile.TemporaryDirectory(prefix="allm-health-") as name:
        settings = gateway_settings(auth="keys", authorizer=f"unix:{name}/authorizer.sock")
        async with running_gateway(Path(name), (NOWHERE,), NOWHERE, settings) as gateway:
            for path in PATHS:
                assert (await send(gateway.port, "GET", path)).status != 401, path
                assert (await send(gateway.port, "GET", path, {"host": "strange.example"})).status == 403, path
            for path in ("/livez/x", "/readyz/x", "/livezx"):
                assert (await send(gateway.port, "GET", path)).status == 503, (
                    "the authorizer is asked, and is not there"
                )
