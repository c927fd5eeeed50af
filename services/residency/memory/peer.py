"""Requests to other service processes of this host to release memory."""

from __future__ import annotations

import logging
import socket

import grpc
from allm.models.v1 import residency_service_pb2, residency_service_pb2_grpc

from services.residency.memory.reservation import Reservation
from services.rpc.channel import NOBODY, OwnIdentity

log = logging.getLogger(__name__)

EVERYWHERE = ("0.0.0.0", "[::]", "::", "*", "")  # noqa: S104 (nothing is bound here)
# A restarting neighbour refuses connections. Do not retry here: the next load tries again.
OPTIONS = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


def peer_address(listen: str) -> str:
    """Returns the address at which others on this host reach the listener on `listen` (ALLM_LISTEN).

    A wildcard listener is reached at the address of this machine or container, so that other containers reach it, too;
    at the loopback address if it has none.
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
    holder: Reservation, seconds: float, requester: str = "", own: OwnIdentity = NOBODY
) -> int | None:
    """Asks the owner of a reservation to unload that model. `requester`: the asking replica, for the owner's log;
    `own`: the identity presented to the owner.

    Returns the freed bytes; None if nothing was freed: the model is in use, pinned or gone, or the owner did not
    answer within `seconds`. Raises nothing but cancellation.
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
        log.warning("another service did not answer a request to unload %s", holder.key.model_id, extra=extra)
        return None
    return answer.bytes if answer.released else None
