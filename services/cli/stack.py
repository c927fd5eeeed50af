"""The services of one machine, as the supervisor runs them: the text service, then the gateway in front of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.address import url_host
from gateway.admin import AdminError, EnvoyAdmin
from gateway.process import envoy_command
from gateway.render import Gateway, write_config
from services.cli.process import Program
from services.cli.supervisor import Service
from services.rpc.settings import Settings

POLL_SECONDS = 0.05
TEXT = "text"
GATEWAY = "gateway"

# A socket that is not there yet is tried again soon: nothing is spared by waiting.
RETRY_SOON = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200))


@dataclass(frozen=True, slots=True)
class Stack:
    """All services of one machine. The ports in `settings` are real ones: free, and not 0."""

    settings: Settings
    folder: Path  # for sockets and rendered files
    environ: Mapping[str, str]  # for the children; each gets its own additions
    say: Callable[[str], None]

    @property
    def base_url(self) -> str:
        """For OpenAI clients on this machine."""
        return f"http://{self.grpc_address}/v1"

    @property
    def grpc_address(self) -> str:
        """For gRPC clients on this machine."""
        return f"{url_host(self.settings.gateway.host)}:{self.settings.gateway.port}"

    @property
    def metrics_url(self) -> str:
        """Where the text service tells its Prometheus metrics."""
        return f"http://{url_host(self.settings.service.metrics_host)}:{self.settings.service.metrics_port}/metrics"

    @property
    def text_address(self) -> str:
        """Where the text service listens: a Unix socket in the run folder."""
        return f"unix:{self.folder / 'text.sock'}"

    def services(self) -> list[Service]:
        """In the order in which they start."""
        return [self._text(), self._gateway()]

    async def models(self) -> list[model_pb2.Model]:
        """What the text service serves."""
        async with grpc.aio.insecure_channel(self.text_address) as channel:
            stub = model_service_pb2_grpc.ModelServiceStub(channel)
            while True:
                await self._wait_serving()
                try:
                    reply = await stub.ListModels(model_service_pb2.ListModelsRequest())
                    return list(reply.models)
                except grpc.aio.AioRpcError:  # it crashed in between, and is being started again
                    await asyncio.sleep(POLL_SECONDS)

    def _text(self) -> Service:
        environ = {
            **self.environ,
            "ALLM_LISTEN": self.text_address,
            "ALLM_METRICS_PORT": str(self.settings.service.metrics_port),
            "ALLM_MODELS": ",".join(f"{name}={path}" for name, path in self.settings.models),
            # The only gateway has already let go of it when it is told to stop.
            "ALLM_DRAIN_DELAY_SECONDS": "0",
            # It starts workers; gRPC's own preparations for a fork can crash a child before it becomes one.
            "GRPC_ENABLE_FORK_SUPPORT": "0",
        }
        program = Program(TEXT, (sys.executable, "-m", "services.text"), environ)
        return Service(program, wait_ready=self._wait_serving, drain=_nothing)

    def _gateway(self) -> Service:
        admin = EnvoyAdmin(self.folder / "admin.sock")
        config = write_config(
            Gateway(self.settings.gateway, text=self.text_address, admin=f"unix:{admin.socket}", folder=self.folder)
        )
        program = Program(GATEWAY, tuple(envoy_command(config, os.cpu_count() or 1)), self.environ)
        return Service(program, wait_ready=lambda: _wait_live(admin), drain=lambda: self._drain(admin))

    async def _wait_serving(self) -> None:
        """Waits until the text service says of itself that it serves."""
        async with grpc.aio.insecure_channel(self.text_address, options=RETRY_SOON) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lack Watch
            while True:
                try:
                    async for reply in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                        if reply.status == health_pb2.HealthCheckResponse.SERVING:
                            return
                except grpc.aio.AioRpcError:  # it has gone again; whoever watches the process knows why
                    await asyncio.sleep(POLL_SECONDS)

    async def _drain(self, admin: EnvoyAdmin) -> None:
        """Turns clients away, and gives running requests time to end."""
        seconds = self.settings.service.drain_seconds
        try:
            async with asyncio.timeout(seconds):
                await admin.drain()
                if active := await admin.active_requests():
                    requests = "1 running request" if active == 1 else f"{active} running requests"
                    self.say(f"waiting up to {seconds:g} s for {requests}; Ctrl-C stops at once")
                while await admin.active_requests():  # noqa: ASYNC110 - another process, it has no events
                    await asyncio.sleep(POLL_SECONDS)
        except AdminError:  # Envoy has crashed or is stuck: there is nothing to wait for
            return
        except TimeoutError:
            self.say("the time for running requests is over")


def with_ports(settings: Settings, port: int, metrics_port: int) -> Settings:
    """The settings with the ports that were chosen."""
    return replace(
        settings,
        gateway=replace(settings.gateway, port=port),
        service=replace(settings.service, metrics_port=metrics_port),
    )


async def _wait_live(admin: EnvoyAdmin) -> None:
    while not await admin.is_ready():  # noqa: ASYNC110 - another process, it has no events
        await asyncio.sleep(POLL_SECONDS)


async def _nothing() -> None:
    """The text service has no requests of its own: all came through the gateway, which has drained."""
