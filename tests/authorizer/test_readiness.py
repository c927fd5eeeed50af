"""The authorizer's health while it does not know its keys yet: a process of its own, whose catalog starts later."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.authorizer.test_key_follower import catalog
from tests.identities import write_keys
from tests.stack import environment

PATIENCE = 60.0  # seconds
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def authorizer(home: Path) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    """Runs an authorizer, and yields its health service once it answers."""
    address = f"unix:{home}/authorizer.sock"
    settings = {"ALLM_AUTH": "keys", "ALLM_LISTEN": address, "ALLM_CATALOG": f"unix:{home}/catalog.sock"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.authorizer",
        env=environment(home, **settings, ALLM_DRAIN_DELAY_SECONDS="0"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            async with asyncio.timeout(PATIENCE):
                await channel.channel_ready()
            yield health_pb2_grpc.HealthStub(channel)
    finally:
        process.terminate()
        await process.communicate()


async def statuses(health: health_pb2_grpc.HealthStub) -> AsyncIterator[int]:
    async for reply in health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE):
        yield reply.status


async def test_it_is_healthy_only_once_it_knows_its_keys() -> None:
    with tempfile.TemporaryDirectory(prefix="ready-") as name:
        write_keys(home := Path(name))
        async with authorizer(home) as health:
            told = statuses(health)
            assert await anext(told) == NOT_SERVING
            async with catalog(home, f"unix:{home}/catalog.sock"):
                assert await anext(told) == SERVING
        async with authorizer(home) as health:  # without the catalog, with the keys of its last run
            told = statuses(health)
            while await anext(told) != SERVING:
                pass
