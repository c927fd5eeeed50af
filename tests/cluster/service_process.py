"""A service as its container runs it: the command, its settings, its probes, SIGTERM and SIGKILL."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.rpc.probe import SERVING, STARTUP
from tests.ports import free_port
from tests.stack import environment

SECONDS = 120


@dataclass
class ServiceProcess:
    """A service process that keeps its ports across restarts, as a Pod keeps its DNS name."""

    module: str
    name: str
    folder: Path
    settings: dict[str, str]
    port: int = field(default_factory=free_port)
    health_port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts the service, and waits until the startup probe succeeds."""
        environ = {
            "ALLM_LISTEN": f"127.0.0.1:{self.port}",
            "ALLM_HEALTH_LISTEN": f"127.0.0.1:{self.health_port}",
            "ALLM_REPLICA": self.name,
        }
        home = self.folder / self.name
        home.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"services.{self.module}",
                env=environment(home, **environ, **self.settings),
                stdout=output,
                stderr=output,
            )
        await until(self._started)

    async def stop(self) -> int:
        """Sends SIGTERM; returns the exit status."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()

    async def kill(self) -> None:
        """Kills it with SIGKILL."""
        if self.process and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    async def _started(self) -> bool:
        assert self.process and self.process.returncode is None, self.log.read_text()[-4000:]
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.health_port}", options=options) as channel:
            try:
                request = health_pb2.HealthCheckRequest(service=STARTUP)
                reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
            except grpc.aio.AioRpcError:
                return False
        return bool(reply.status == SERVING)


async def until(condition: Callable) -> None:
    """Waits until an asynchronous condition holds. Raises TimeoutError."""
    async with asyncio.timeout(SECONDS):
        while not await condition():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


@asynccontextmanager
async def ending(*services: ServiceProcess) -> AsyncIterator[None]:
    """Kills all services when the block ends, also after an error."""
    try:
        yield
    finally:
        for service in services:
            await service.kill()
