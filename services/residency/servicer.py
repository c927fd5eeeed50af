"""allm.models.v1.ResidencyService: shows the models in memory, and unloads one at a neighbour's request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from allm.models.v1 import residency_service_pb2, residency_service_pb2_grpc

from services.auth.identity import ADMIN, SERVICE, WATCH_MEMORY
from services.errors import InvalidRequest, Overloaded
from services.residency.memory.readings import MemorySnapshot
from services.residency.memory.reservation import Reservation, ResidentKey
from services.residency.residency import Residency
from services.rpc.call import Call, typed

RELEASE_SECONDS = 30.0  # a worker is asked to end, killed after two seconds, and may be slow to free its memory
SECONDS = 10.0
WATCH_SECONDS = 1.0  # between two snapshots of a watch: the monitor's interval
MAX_WATCHES = 32
MAX_NAME = 128  # characters of a name that goes into the log
PEER = "peer"  # the reason of evictions at a neighbour's request


class ResidencyServicer(residency_service_pb2_grpc.ResidencyServiceServicer):
    """The residency API of one service process."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._watches = 0
        self._ending = asyncio.Event()

    def end_watches(self) -> None:
        """Ends all current and future watches: observers must not delay the shutdown of a service."""
        self._ending.set()

    @typed(RELEASE_SECONDS, scope=ADMIN, also=SERVICE)
    async def Release(  # noqa: N802
        self, request: residency_service_pb2.ReleaseRequest, call: Call
    ) -> residency_service_pb2.ReleaseResponse:
        """Unloads an idle model."""
        for name in ("model_id", "runtime", "generation"):
            if not getattr(request, name):
                raise InvalidRequest(f"{name} is required", param=name)
        key = ResidentKey(request.model_id, request.generation, request.runtime)
        # Shielded: a neighbour that gives up waiting must not leave a half-closed worker.
        freed = await asyncio.shield(self._residency.evict(key, PEER))
        call.facts["requester"] = request.requester[:MAX_NAME]
        call.facts["released"] = freed is not None
        return residency_service_pb2.ReleaseResponse(released=freed is not None, bytes=freed or 0)

    @typed(SECONDS, quiet=True, scope=ADMIN, also=WATCH_MEMORY)
    async def GetResidency(  # noqa: N802
        self, request: residency_service_pb2.GetResidencyRequest, call: Call
    ) -> residency_service_pb2.GetResidencyResponse:
        """Returns memory and models once."""
        return residency_service_pb2.GetResidencyResponse(residency=_residency(self._residency.snapshot()))

    @typed(scope=ADMIN, also=WATCH_MEMORY)
    async def WatchResidency(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: residency_service_pb2.WatchResidencyRequest, call: Call
    ) -> None:
        """Sends memory and models at every change. A slow reader gets fewer messages, never stale ones."""
        if self._watches >= MAX_WATCHES:
            raise Overloaded(f"{MAX_WATCHES} watches are open, which is the limit")
        self._watches += 1
        try:
            sent: MemorySnapshot | None = None
            while not self._ending.is_set():
                now = self._residency.snapshot()
                if now != sent:
                    await call.send(residency_service_pb2.WatchResidencyResponse(residency=_residency(now)))
                    sent = now
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WATCH_SECONDS):
                        await self._ending.wait()
        finally:
            self._watches -= 1


def _residency(snapshot: MemorySnapshot) -> residency_service_pb2.Residency:
    return residency_service_pb2.Residency(
        host=residency_service_pb2.HostMemory(
            total_bytes=snapshot.host.total, used_bytes=snapshot.host.used, source=snapshot.host.source
        ),
        devices=[
            residency_service_pb2.DeviceMemory(name=each.name, total_bytes=each.total, used_bytes=each.used)
            for each in snapshot.devices
        ],
        models=[_model(each) for each in sorted(snapshot.residents, key=lambda each: each.last_used)],
    )


def _model(row: Reservation) -> residency_service_pb2.ResidentModel:
    message = residency_service_pb2.ResidentModel(
        model_id=row.key.model_id,
        generation=row.key.generation,
        runtime=row.key.runtime,
        places=_device_memory(row.devices, row.measured),
        loading=row.loading,
        busy=row.busy,
        pinned=row.pinned,
    )
    if row.last_used:
        message.last_used_time.FromMilliseconds(round(row.last_used * 1000))
    return message


def _device_memory(reserved: Mapping[str, int], measured: Mapping[str, int]) -> list[residency_service_pb2.PlaceMemory]:
    return [
        residency_service_pb2.PlaceMemory(place=device, reserved_bytes=count, measured_bytes=measured.get(device, 0))
        for device, count in sorted(reserved.items())
    ]
