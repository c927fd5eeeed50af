"""The services that the supervisor runs on one machine: catalog, text, audio, image, authorizer (if any), gateway."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway import stats
from gateway.address import url_host
from gateway.admin import EnvoyAdmin, drain, until_it_works
from gateway.process import envoy_command
from gateway.render import Gateway, write_config
from services.auth.identity_keys import KEY_FILE, ROLES
from services.cli.serve.process import Program
from services.cli.serve.supervisor import Service
from services.settings.settings import Settings

POLL_SECONDS = 0.05
CATALOG = "catalog"
TEXT = "text"
AUDIO = "audio"
IMAGE = "image"
AUTHORIZER = "authorizer"
GATEWAY = "gateway"

# Retry quickly if a socket does not exist yet: waiting saves nothing.
RETRY_SOON = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200))


@dataclass(frozen=True, slots=True)
class Stack:
    """All services of one machine. The ports are final: free, and not 0."""

    settings: Settings
    folder: Path  # for sockets and rendered files
    environ: Mapping[str, str]  # base environment of the children; each gets its own additions
    metrics_ports: Mapping[str, int]  # metrics port of every service except the gateway
    say: Callable[[str], None]

    @property
    def base_url(self) -> str:
        """The URL for OpenAI clients on this machine."""
        return f"{'https' if self.settings.tls.edge else 'http'}://{self.grpc_address}/v1"

    @property
    def grpc_address(self) -> str:
        """The address for gRPC clients on this machine."""
        return f"{url_host(self.settings.gateway.host)}:{self.settings.gateway.port}"

    @property
    def local_address(self) -> str:
        """The address for this user's commands, which needs no certificate."""
        return self._socket(GATEWAY) if self.settings.tls.edge else self.grpc_address

    @property
    def metrics_urls(self) -> dict[str, str]:
        """The URLs of the services' Prometheus metrics, and of Envoy's."""
        host, gateway = url_host(self.settings.service.metrics_host), self.settings.gateway
        urls = {name: f"http://{host}:{port}/metrics" for name, port in self.metrics_ports.items()}
        if gateway.stats_port:
            urls[GATEWAY] = f"http://{url_host(gateway.stats_host)}:{gateway.stats_port}{stats.PATH}"
        return urls

    @property
    def catalog_address(self) -> str:
        """The catalog's address: a Unix socket in the run folder."""
        return self._socket(CATALOG)

    def services(self) -> list[Service]:
        """Returns the services in start order: the catalog, all that answer requests, then the gateway."""
        text = [self._service(TEXT, name) for name in names(TEXT, self.settings.text_replicas)]
        audio = [self._service(AUDIO, name) for name in names(AUDIO, self.settings.audio_replicas)]
        image = [self._service(IMAGE, name) for name in names(IMAGE, self.settings.image_replicas)]
        authorizer = [self._service(name, name) for name in authorizer_names(self.settings)]
        first, *others = (*text, *audio, *image, *authorizer)
        together = [replace(service, with_previous=True) for service in others]
        return [self._service(CATALOG, CATALOG), first, *together, self._gateway()]

    def _socket(self, name: str) -> str:
        return f"unix:{self.folder / name}.sock"

    def _service(self, module: str, name: str) -> Service:
        address = self._socket(name)
        # ALLM_MODELS is the operator's own choice: its files, and only those, may be anywhere.
        named = [str(path.expanduser().absolute()) for _, path in self.settings.models]
        roots = [*map(str, self.settings.model.roots), *named]
        environ = {
            **self.environ,
            "ALLM_LISTEN": address,
            # The gateway's real address, which the services put into download URLs for callers.
            "ALLM_HOST": self.settings.gateway.host,
            "ALLM_PORT": str(self.settings.gateway.port),
            "ALLM_METRICS_PORT": str(self.metrics_ports[name]),
            "ALLM_CATALOG": self.catalog_address,
            "ALLM_REPLICA": name,
            "ALLM_MODEL_ROOTS": ",".join(roots),
            # No drain delay: the only gateway has already disconnected when a service is stopped.
            "ALLM_DRAIN_DELAY_SECONDS": "0",
            # The service starts workers; gRPC's fork support can crash a child before its exec.
            "GRPC_ENABLE_FORK_SUPPORT": "0",
        }
        if module in ROLES:
            environ[KEY_FILE] = str(self.settings.auth.key_file_of(module))
        program = Program(name, (sys.executable, "-m", f"services.{module}"), environ)
        return Service(
            program,
            wait_ready=lambda: _wait_serving(address),
            wait_answer=lambda: _wait_answer(address),
            drain=_nothing,
        )

    def _gateway(self) -> Service:
        admin = EnvoyAdmin(self.folder / "admin.sock")
        config = write_config(
            Gateway(
                replace(self.settings.gateway, authorizer=self._socket(AUTHORIZER)),
                text=tuple(map(self._socket, names(TEXT, self.settings.text_replicas))),
                audio=tuple(map(self._socket, names(AUDIO, self.settings.audio_replicas))),
                image=tuple(map(self._socket, names(IMAGE, self.settings.image_replicas))),
                catalog=self.catalog_address,
                admin=f"unix:{admin.socket}",
                folder=self.folder,
                tls=self.settings.tls,
                local=self._socket(GATEWAY) if self.settings.tls.edge else "",
                trace=self.settings.trace,
                direct=True,
            )
        )
        program = Program(GATEWAY, tuple(envoy_command(config, os.cpu_count() or 1)), self.environ)
        return Service(
            program,
            wait_ready=admin.wait_ready,
            wait_answer=lambda: self._wait_gateway_answer(admin),
            drain=lambda: self._drain(admin),
        )

    async def _wait_gateway_answer(self, admin: EnvoyAdmin) -> None:
        """Waits until Envoy's main thread answers, and a thread that serves requests."""
        await admin.wait_answer()
        await stats.wait_answer(self.settings.gateway.stats_host, self.settings.gateway.stats_port)

    async def _drain(self, admin: EnvoyAdmin) -> None:
        """Disconnects clients, and gives running requests time to end."""
        await drain(admin, self.settings.service.drain_seconds, self.say)


def names(service: str, replicas: int) -> list[str]:
    """Returns the names of a service's replicas: a single one has no number; there may be none."""
    return [service] if replicas == 1 else [f"{service}-{number}" for number in range(1, replicas + 1)]


def authorizer_names(settings: Settings) -> list[str]:
    """Returns the name of the authorizer, if there is one."""
    return [AUTHORIZER] if settings.auth.keys else []


def with_listener(settings: Settings, host: str, port: int) -> Settings:
    """Returns the settings with the gateway's chosen host and port."""
    return replace(settings, gateway=replace(settings.gateway, host=host, port=port))


async def _wait_serving(address: str) -> None:
    """Waits until a service reports itself as serving."""
    async with grpc.aio.insecure_channel(address, options=RETRY_SOON) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs lack Watch
        while True:
            try:
                async for reply in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                    if reply.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError:  # the service has ended; the supervisor reports why
                await asyncio.sleep(POLL_SECONDS)


async def _wait_answer(address: str) -> None:
    """Waits until a service answers a health check, or has closed its socket: then it is ending, and its exit is seen.

    The caller limits the time. The event loop that answers is the one that all requests need.
    """
    async with grpc.aio.insecure_channel(address, options=RETRY_SOON) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs lack Check

        async def ask() -> None:
            if _is_open(address):
                await stub.Check(health_pb2.HealthCheckRequest())

        await until_it_works(ask, grpc.aio.AioRpcError)


def _is_open(address: str) -> bool:
    return Path(address.removeprefix("unix:")).exists()


async def _nothing() -> None:
    """Drains nothing: all requests came through the gateway, which has drained."""
