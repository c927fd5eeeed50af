"""`allm gateway` as a container runs it: a separate process, configured by settings only."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gateway.admin import EnvoyAdmin
from tests.ports import free_port
from tests.stack import environment

COMMAND = (sys.executable, "-m", "services.cli", "gateway")
START_SECONDS = 60


@dataclass(frozen=True)
class GatewayCommand:
    """A running `allm gateway`."""

    process: asyncio.subprocess.Process
    port: int
    log: Path

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"http://{self.grpc_address}/v1"

    def lines(self) -> list[dict[str, Any]]:
        """Returns its output so far; every line is JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    async def said(self, message: str) -> dict[str, Any]:
        """Waits for a line of its own log."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                for line in self.lines():
                    if line.get("msg") == message:
                        return line
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.02)

    async def count(self, statistic: str) -> int:
        """Returns one of Envoy's counters; 0 while it does not exist."""
        (envoy,) = psutil.Process(self.process.pid).children()
        command = envoy.cmdline()
        admin = EnvoyAdmin(Path(command[command.index("--config-path") + 1]).with_name("admin.sock"))
        _, body = await admin._call("GET", f"/stats?filter=^{statistic}$&format=json")
        return int(next((found["value"] for found in json.loads(body)["stats"] if "value" in found), 0))

    async def healthz(self) -> int:
        """Returns the status of /healthz, requested without TLS."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status

    async def healthy(self) -> None:
        """Waits until a healthy text service is behind it."""
        async with asyncio.timeout(START_SECONDS):
            while await self.healthz() != 200:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)


@asynccontextmanager
async def gateway_command(folder: Path, **settings: str) -> AsyncIterator[GatewayCommand]:
    """Runs the gateway on a free port until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing else runs here
    port, log = free_port(), folder / "gateway.log"
    environ = environment(folder / "home", **{"ALLM_PORT": str(port), "ALLM_DRAIN_DELAY_SECONDS": "0"} | settings)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*COMMAND, env=environ, stdout=output, stderr=output)
    command = GatewayCommand(process, port, log)
    try:
        await command.said("serving")
        yield command
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def refused(folder: Path, **settings: str) -> tuple[int, str]:
    """Returns the exit status and the output of a command that must not start."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        env=environment(folder, **settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(START_SECONDS):
        words, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, words.decode()
