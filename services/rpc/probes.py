"""The health service for a kubelet's probes: plain gRPC on its own address, open to everybody, with no other service.

The service's own port may require certificates or keys, which a kubelet cannot send. Each probe is a name of the health
service: `startup`, `readiness`, and `liveness`, which passes while this process's event loop answers.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

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
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Starts alive, but neither started nor ready. Raises OSError if the address cannot be used."""
        if self._server is None:
            return
        health_pb2_grpc.add_HealthServicer_to_server(self._status, self._server)
        try:
            self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise OSError(f"ALLM_HEALTH_LISTEN={self._listen}: the address cannot be used: {error}") from error
        await self._status.set(LIVENESS, SERVING)
        for name in ("", STARTUP, READINESS):
            await self._status.set(name, NOT_SERVING)
        await self._server.start()

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

    async def close(self) -> None:
        """Stops the health service."""
        if self._server:
            await self._server.stop(None)
