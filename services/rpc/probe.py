"""The health service for a kubelet's probes, and the command that asks it: `python -m services.rpc.probe NAME`.

Plain gRPC on its own address, open to everybody, with no other service: the service's own port may require certificates
or keys, which a kubelet cannot send. Each probe is a name of the health service: `startup`, `readiness`, and
`liveness`, which passes while this process's event loop answers. The command serves container engines without gRPC
probes: its exit status is 0 if the probe passes, otherwise 1, with the reason on stderr.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.settings.setting import SettingError
from services.settings.settings import load_settings

STARTUP, READINESS, LIVENESS = "startup", "readiness", "liveness"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Probes:
    """A running health service; does nothing if `listen` (ALLM_HEALTH_LISTEN) is empty."""

    def __init__(self, listen: str) -> None:
        self._listen = listen
        self._status = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)]) if listen else None

    async def __aenter__(self) -> Probes:
        """Starts alive, but neither started nor ready. Raises OSError if the address cannot be used."""
        if self._server is None:
            return self
        health_pb2_grpc.add_HealthServicer_to_server(self._status, self._server)
        try:
            self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise OSError(f"ALLM_HEALTH_LISTEN={self._listen}: the address cannot be used: {error}") from error
        await self._status.set(LIVENESS, SERVING)
        for name in ("", STARTUP, READINESS):
            await self._status.set(name, NOT_SERVING)
        await self._server.start()
        return self

    async def ready(self) -> None:
        """Reports that the service takes requests."""
        await self._status.set("", SERVING)
        await self._status.set(READINESS, SERVING)

    async def started(self) -> None:
        """Reports that all models for the start are loaded."""
        await self._status.set(STARTUP, SERVING)

    async def leaving(self) -> None:
        """Reports that the service takes no more requests."""
        await self._status.set("", NOT_SERVING)
        await self._status.set(READINESS, NOT_SERVING)

    async def __aexit__(self, *_: object) -> None:
        if self._server:
            await self._server.stop(None)


NAMES = (STARTUP, READINESS, LIVENESS)
ANSWER_SECONDS = 4.0  # less than the timeout of container engines and kubelets


class NotServing(Exception):
    """The probe failed; the message says why."""


def ask(listen: str, name: str) -> None:
    """Queries the health service at ALLM_HEALTH_LISTEN. Raises NotServing."""
    if not listen:
        raise NotServing("ALLM_HEALTH_LISTEN is not set: the service has no port for probes")
    address = listen.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lack Check
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            raise NotServing(f"{name}: {address} does not answer: {error.details()}") from error
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        raise NotServing(f"{name}: not ready yet, or shutting down")


def main(arguments: list[str]) -> int:
    """Runs the probe and returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in NAMES:
        print(f"usage: python -m services.rpc.probe {'|'.join(NAMES)}", file=sys.stderr)
        return 2
    try:
        ask(load_settings().service.health_listen, arguments[0])
    except (NotServing, SettingError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
