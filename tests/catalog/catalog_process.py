"""The catalog as a process of its own, which tests may kill."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from allm.models.v1 import model_service_pb2_grpc

START_SECONDS = 60.0


def launch(home: Path, **environ: str):
    """Starts it; its socket is `home`/s, its only root of local sources `home`/files."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ALLM_")}
    settings = {
        "ALLM_LISTEN": f"unix:{home}/s",
        "ALLM_HOME": str(home),
        "ALLM_MODEL_ROOTS": str(home / "files"),
        "ALLM_METRICS_PORT": "0",
        "ALLM_DRAIN_DELAY_SECONDS": "0",
    }
    return asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.catalog",
        env=ours | settings | environ,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def until_serving(process: asyncio.subprocess.Process) -> None:
    """Reads its log up to where it serves."""
    async with asyncio.timeout(START_SECONDS):
        while b'"msg": "serving"' not in (line := await process.stderr.readline()):
            assert line, "it ended before it served"


@asynccontextmanager
async def connected(home: Path) -> AsyncIterator[model_service_pb2_grpc.ModelServiceStub]:
    """A client of it, over a connection of its own."""
    # Channels to one address share what they know of it, also that it was gone a moment ago.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{home}/s", options=options) as channel:
        yield model_service_pb2_grpc.ModelServiceStub(channel)


async def killed(process: asyncio.subprocess.Process) -> None:
    """Kills it, unless it has ended, and waits for its end."""
    if process.returncode is None:
        process.kill()
    await process.communicate()
