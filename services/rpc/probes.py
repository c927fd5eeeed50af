"""What a kubelet asks: gRPC health on an address of its own, plain and open to everybody, with nothing else on it.

The service's own port may want certificates or keys, which a kubelet cannot show. Each probe is a name of the health
service: `startup`, `readiness`, and `liveness`, to which this process's event loop answers or does not.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

STARTUP, READINESS, LIVENESS = "startup", "readiness", "liveness"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Probes:
    """A running health service; nowhere where `listen` (ALLM_HEALTH_LISTEN) is empty."""

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
        """Alive from now on, but neither started nor ready. Raises OSError where the address cannot be used."""
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
        """Requests are welcome."""
        await self._status.set("", SERVING)
        await self._status.set(READINESS, SERVING)

    async def started(self) -> None:
        """What is to be in memory at the start is there."""
        await self._status.set(STARTUP, SERVING)

    async def leaving(self) -> None:
        """Requests had better go elsewhere."""
        await self._status.set("", NOT_SERVING)
        await self._status.set(READINESS, NOT_SERVING)

    async def close(self) -> None:
        """Stops."""
        if self._server:
            await self._server.stop(None)
