"""A text replica in a separate process, which a test can kill: `python -m tests.gateway.replica ADDRESS NAME`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from google.api.httpbody_pb2 import HttpBody

from tests.gateway.upstream import Context, Upstream, event

START_SECONDS = 60


@asynccontextmanager
async def replica_process(socket: Path, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs a replica on a Unix socket that answers each request with its name; yields the process once it serves."""
    command = (sys.executable, "-m", "tests.gateway.replica", f"unix:{socket}", name)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(START_SECONDS):
            assert process.stdout
            assert await process.stdout.readline() == b"serving\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def main(address: str, name: str) -> None:
    """Serves until it is killed."""

    async def chat(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        yield event(name)

    await Upstream(chat).start(address)
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
