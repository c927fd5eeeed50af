"""A real Envoy with the configuration that the renderer writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.admin import EnvoyAdmin
from gateway.process import envoy_command
from gateway.render import PLAIN, Gateway, write_config
from services.settings.gateway_settings import GatewaySettings
from services.settings.tls_settings import TlsSettings
from services.settings.trace_settings import NO_TRACES, TraceSettings
from tests.ports import free_port

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing is bound in the tests that use it
START_SECONDS = 60
NOWHERE = "unix:/nowhere/catalog.sock"  # for gateways whose catalog gets no requests
LISTED_ORIGIN = "http://app.example:3000"
LISTED_HOST = "allm.example.org"
CLUSTERS = ("text", "health", "catalog")


def gateway_settings(
    host: str = "127.0.0.1",
    port: int = 0,
    allowed_hosts: tuple[str, ...] = (),
    cors_origins: tuple[str, ...] = (),
    max_body_bytes: int = 1024 * 1024,
    auth: str = "none",
    authorizer: str = "",
) -> GatewaySettings:
    """Returns the defaults of `load_settings`, overridden by the arguments."""
    return GatewaySettings(host, port, allowed_hosts, cors_origins, max_body_bytes, auth, authorizer)


@dataclass(frozen=True)
class RunningGateway:
    """An Envoy that accepts connections."""

    port: int
    admin: EnvoyAdmin
    process: asyncio.subprocess.Process
    log: Path

    async def logged(self, text: str) -> list[str]:
        """Waits until the log contains `text`; returns all its lines."""
        async with asyncio.timeout(60):
            while text not in (content := self.log.read_text()):  # noqa: ASYNC110 - a file has no events
                await asyncio.sleep(0.05)
        return content.splitlines()

    async def finds_all_healthy(self, *more: str) -> None:
        """Waits until Envoy sees every service as healthy, and the clusters `more`.

        Scripted services answer Envoy's health checks only while this event loop runs: after many tests without the
        loop, Envoy has marked them unhealthy, and it recovers them within a second.
        """
        async with asyncio.timeout(60):
            while not all(await asyncio.gather(*map(self._healthy, (*CLUSTERS, *more)))):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)

    async def gauge(self, name: str) -> int:
        """Returns the value of one of Envoy's statistics."""
        _, body = await self.admin._call("GET", f"/stats?filter=^{name}$&format=json")
        value: int = json.loads(body)["stats"][0]["value"]
        return value

    async def _healthy(self, cluster: str) -> bool:
        return bool(await self.gauge(f"cluster.{cluster}.membership_healthy"))


@asynccontextmanager
async def running_gateway(
    folder: Path,
    text: tuple[str, ...],
    catalog: str,
    settings: GatewaySettings,
    audio: tuple[str, ...] = (),
    image: tuple[str, ...] = (),
    trace: TraceSettings = NO_TRACES,
    tls: TlsSettings = PLAIN,
    local: str = "",
) -> AsyncIterator[RunningGateway]:
    """Runs Envoy on a free port, in front of the replicas `text`, `audio` and `image` and of `catalog`."""
    port = free_port()
    settings = replace(settings, host="127.0.0.1", port=port)
    admin = EnvoyAdmin(folder / "admin.sock")
    gateway = Gateway(
        settings, text, catalog, f"unix:{admin.socket}", folder, audio, image, trace=trace, tls=tls, local=local
    )
    config = write_config(gateway)
    log = folder / "gateway.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*envoy_command(config, cores=1), stdout=output, stderr=output)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await admin.is_ready():
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        yield RunningGateway(port, admin, process, log)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
