"""The request id: the gateway's own, in every response of every service and protocol."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import grpc
import pytest
from allm.openai.v1 import text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.envoy_process import LISTED_ORIGIN, RunningGateway
from tests.gateway.upstream import Context, Upstream, event
from tests.gateway.wire import send

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
MADE_UP = {"x-request-id": "made-up"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("POST", CHAT, JSON, b"{}", 200),
        ("GET", "/v1/unknown", {}, None, 404),
        ("GET", "/healthz", {}, None, 200),
        ("GET", "/v1/models", {"host": "strange.example"}, None, 403),
        ("GET", "/v1/models", {"origin": "http://strange.example"}, None, 403),
        ("OPTIONS", CHAT, {"origin": LISTED_ORIGIN, "access-control-request-method": "POST"}, None, 200),
        ("POST", CHAT, JSON, b" " * (1024 * 1024 + 1), 413),
        ("POST", "/v1/audio/transcriptions", JSON, b"{}", 503),
    ],
    ids=["answer", "no-such-path", "health", "host", "origin", "preflight", "too-large", "no-service"],
)
async def test_it_is_in_every_response_over_rest(
    gateway: RunningGateway,
    upstream: Upstream,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes | None,
    status: int,
) -> None:
    reply = await send(gateway.port, method, path, {**headers, **MADE_UP}, body)
    assert reply.status == status
    assert ID.fullmatch(reply.headers["x-request-id"])


async def refuse(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
    yield event(1)


async def test_errors_of_services_have_it_too(gateway: RunningGateway, upstream: Upstream) -> None:
    upstream.chat = refuse
    reply = await send(gateway.port, "POST", CHAT, {**JSON, **MADE_UP}, b"{}")
    assert reply.status == 400
    assert reply.headers["x-request-id"] == upstream.metadata[0]["x-request-id"]
    assert ID.fullmatch(reply.headers["x-request-id"])


async def test_over_grpc(gateway: RunningGateway, upstream: Upstream) -> None:
    """The id is in the headers of an answer and in the trailers of an error, which has no other metadata."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        stub = text_service_pb2_grpc.TextServiceStub(channel)
        call = stub.CreateChatCompletion(HttpBody(), metadata=tuple(MADE_UP.items()), timeout=30)
        assert [reply async for reply in call]
        assert dict(await call.initial_metadata())["x-request-id"] == upstream.metadata[0]["x-request-id"]
        upstream.chat = refuse
        call = stub.CreateChatCompletion(HttpBody(), timeout=30)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [reply async for reply in call]
        trailers = dict(caught.value.trailing_metadata())
        assert trailers["x-request-id"] == upstream.metadata[1]["x-request-id"]
        lost = chat_service_pb2_grpc.ChatServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await lost.CreateChatCompletion(
                chat_service_pb2.CreateChatCompletionRequest(), metadata=(("origin", "http://x.example"),), timeout=30
            )
        assert ID.fullmatch(dict(caught.value.trailing_metadata())["x-request-id"]), "refused by the gateway itself"


async def test_over_grpc_web(gateway: RunningGateway, upstream: Upstream) -> None:
    for script in (None, refuse):
        upstream.chat = script or upstream.chat
        headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1", **MADE_UP}
        path = "/allm.openai.v1.TextService/CreateChatCompletion"
        reply = await send(gateway.port, "POST", path, headers, b"\0\0\0\0\0")
        assert reply.status == 200
        assert reply.headers["x-request-id"] == upstream.metadata[-1]["x-request-id"] != "made-up"
