"""The catalog as a separate process that tests may kill."""

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
    """Starts the catalog on the socket `home`/s, with `home`/files as its only root of local sources."""
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
    """Reads the log until the catalog serves."""
    async with asyncio.timeout(START_SECONDS):
        while b'"msg": "serving"' not in (line := await process.stderr.readline()):
            assert line, "it ended before it served"


@asynccontextmanager
async def connected(home: Path) -> AsyncIterator[model_service_pb2_grpc.ModelServiceStub]:
    """Yields a client stub on a separate connection."""
    # Channels to one address share subchannels by default, including a recent connection failure.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{home}/s", options=options) as channel:
        yield model_service_pb2_grpc.ModelServiceStub(channel)


async def killed(process: asyncio.subprocess.Process) -> None:
    """Kills the process if it still runs, and waits for its exit."""
    if process.returncode is None:
        process.kill()
    await process.communicate()
