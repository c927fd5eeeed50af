"""The same call through REST, gRPC and gRPC-Web, with or without a key, and its outcome."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc
from allm.keys.v1 import keys_pb2
from allm.models.v1 import machine_service_pb2, model_service_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from tests.gateway.wire import Reply, send

PROTOCOLS = ("rest", "grpc", "grpc-web")
HTTP_STATUSES = {
    200: "OK",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
# Machine-readable errors: OpenAI's code, and the reason of google.rpc.ErrorInfo.
REASONS = {
    "invalid_api_key": "UNAUTHENTICATED",
    "insufficient_scope": "FORBIDDEN",
    "model_not_allowed": "FORBIDDEN",
    "rate_limit_exceeded": "OVERLOADED",
    "service_unavailable": "INTERNAL",
}


@dataclass(frozen=True)
class Way:
    """One request in its REST form and its gRPC form."""

    method: str
    path: str
    rpc: str
    request: Message
    body: bytes | None = None


LIST = Way("GET", "/v1/models", "/allm.models.v1.ModelService/ListModels", model_service_pb2.ListModelsRequest())
LOAD = Way(
    "POST",
    "/v1/models/m:load",
    "/allm.models.v1.ModelService/LoadModel",
    model_service_pb2.LoadModelRequest(id="m"),
    b"{}",
)
CREATE_KEY = Way(
    "POST",
    "/v1/api_keys",
    "/allm.keys.v1.KeyService/CreateKey",
    keys_pb2.CreateKeyRequest(name="another"),
    b'{"name": "another"}',
)
WATCH_MACHINE = Way(
    "",  # gRPC only
    "",
    "/allm.models.v1.MachineService/WatchMachine",
    machine_service_pb2.WatchMachineRequest(),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call."""

    status: str  # name of the gRPC status
    message: str = ""
    reason: str = ""  # of google.rpc.ErrorInfo, or the equivalent of OpenAI's code; empty if absent
    headers: dict[str, str] | None = None


async def ask(protocol: str, port: int, way: Way, headers: dict[str, str] | None = None) -> Outcome:
    """Makes the call with these headers or metadata."""
    if protocol == "rest":
        return _rest(await send(port, way.method, way.path, headers or {}, way.body))
    if protocol == "grpc":
        return await _grpc(port, way, headers or {})
    content = way.request.SerializeToString()
    kind = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}
    body = struct.pack(">BI", 0, len(content)) + content
    return _web(await send(port, "POST", way.rpc, {**(headers or {}), **kind}, body))


def bearer(key: str) -> dict[str, str]:
    """Returns the header that carries a key."""
    return {"authorization": f"Bearer {key}"}


def _rest(reply: Reply) -> Outcome:
    status = HTTP_STATUSES[reply.status]
    if status == "OK":
        return Outcome(status, headers=reply.headers)
    return Outcome(status, reply.error["message"], REASONS.get(reply.error["code"] or "", ""), reply.headers)


async def _grpc(port: int, way: Way, headers: dict[str, str]) -> Outcome:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        call = channel.unary_unary(way.rpc)(way.request.SerializeToString(), metadata=tuple(headers.items()))
        try:
            await call
        except grpc.aio.AioRpcError as error:
            found: dict[str, Any] = {**dict(error.initial_metadata() or ()), **dict(error.trailing_metadata() or ())}
            return Outcome(error.code().name, error.details() or "", _reason(found.get(DETAILS, b"")), found)
        return Outcome("OK", headers={str(name): str(value) for name, value in await call.initial_metadata()})


DETAILS = "grpc-status-details-bin"


def _web(reply: Reply) -> Outcome:
    headers = dict(reply.headers)
    body = reply.body
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        if flags & 0x80:
            lines = body[5 : 5 + length].decode().split("\r\n")
            headers |= {
                name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
            }
        body = body[5 + length :]
    assert "grpc-status" in headers, reply
    assert headers["content-type"].startswith("application/grpc-web"), reply
    code = next(code for code in grpc.StatusCode if code.value[0] == int(headers["grpc-status"]))
    details = headers.get(DETAILS, "")
    return Outcome(
        code.name,
        unquote(headers.get("grpc-message", "")),
        _reason(base64.b64decode(details + "=" * (-len(details) % 4))),
        headers,
    )


def _reason(details: bytes) -> str:
    if not details:
        return ""
    info = error_details_pb2.ErrorInfo()
    (packed,) = status_pb2.Status.FromString(details).details
    assert packed.Unpack(info)
    assert info.domain == "allm"
    assert info.metadata["request_id"]
    return str(info.reason)
