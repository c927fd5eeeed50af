"""Other service processes of this host, asked to give memory back."""

from __future__ import annotations

import logging
import socket

import grpc
from allm.models.v1 import residency_service_pb2, residency_service_pb2_grpc

from services.residency.memory.reservation import Reservation
from services.rpc.own_identity import NOBODY, OwnIdentity

log = logging.getLogger(__name__)

RELEASE_SECONDS = 10.0  # a neighbour that has not answered by then is passed over
EVERYWHERE = ("0.0.0.0", "[::]", "::", "*", "")  # noqa: S104 (nothing is bound here)
# A neighbour that is being restarted refuses connections: the next attempt is another load's, not this one's.
OPTIONS = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


def peer_address(listen: str) -> str:
    """Where others on this host reach what listens on `listen` (ALLM_LISTEN).

    Who listens everywhere is reached at the address of this machine or container, so that other containers get there,
    too; at the loopback where it has none.
    """
    host, colon, port = listen.rpartition(":")
    if listen.startswith("unix:") or not colon or host not in EVERYWHERE:
        return listen
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        own = "127.0.0.1"
    return f"{own}:{port}"


async def ask_to_release(
    holder: Reservation, seconds: float = RELEASE_SECONDS, requester: str = "", own: OwnIdentity = NOBODY
) -> int | None:
    """Asks the owner of a reservation to unload that model; `requester`: the replica that asks, for the owner's log;
    `own`: what the owner is shown.

    Returns the bytes that it freed; None where it did not: the model is in use, pinned or gone, or the owner is not
    reached within `seconds`. Never raises, but when it is cancelled.
    """
    request = residency_service_pb2.ReleaseRequest(
        model_id=holder.key.model_id,
        generation=holder.key.generation,
        runtime=holder.key.runtime,
        requester=requester,
    )
    try:
        async with own.channel(holder.address, OPTIONS) as channel:
            answer = await residency_service_pb2_grpc.ResidencyServiceStub(channel).Release(request, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        extra = {"replica": holder.replica, "address": holder.address, "code": error.code().name}
        log.warning("a neighbour did not answer when it was asked to unload %s", holder.key.model_id, extra=extra)
        return None
    return answer.bytes if answer.released else None
