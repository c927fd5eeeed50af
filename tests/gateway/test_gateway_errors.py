"""Errors of the service, of gRPC and of Envoy: REST callers get all of them in OpenAI's format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from allm.models.v1 import model_service_pb2, model_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.envoy_process import RunningGateway
from tests.gateway.scripted_catalog import ScriptedCatalog
from tests.gateway.upstream import Upstream, error_details, event
from tests.gateway.wire import posting, send

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/v1/chat/completions"
LIMIT = 1024 * 1024


async def test_an_error_of_the_service_arrives_whole(gateway: RunningGateway, upstream: Upstream) -> None:
    details = error_details('bad "x"\n\u2603', "invalid_request_error", None, param="messages")

    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not shown", (details,))
        yield event("never")

    upstream.chat = chat
    reply = await send(gateway.port, "POST", CHAT, body=b"{}")
    assert reply.status == 400
    assert reply.error == {
        "message": 'bad "x"\n\u2603',
        "type": "invalid_request_error",
        "param": "messages",
        "code": None,
    }


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400),
        (grpc.StatusCode.NOT_FOUND, 404),
        (grpc.StatusCode.ALREADY_EXISTS, 409),
        (grpc.StatusCode.FAILED_PRECONDITION, 400),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
        (grpc.StatusCode.INTERNAL, 500),
        (grpc.StatusCode.UNIMPLEMENTED, 501),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 504),
    ],
)
async def test_errors_that_the_facade_did_not_write(
    gateway: RunningGateway, upstream: Upstream, code: grpc.StatusCode, status: int
) -> None:
    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        await context.abort(code, 'say "hi"')
        yield event("never")

    upstream.chat = chat
    reply = await send(gateway.port, "POST", CHAT, body=b"{}")
    assert reply.status == status
    assert reply.error == {
        "message": 'say "hi"',
        "type": "server_error" if status >= 500 else "invalid_request_error",
        "param": None,
        "code": f"grpc_{code.value[0]}",
    }


@pytest.mark.parametrize("initial", [False, True])
async def test_metadata_of_an_error_become_headers(gateway: RunningGateway, upstream: Upstream, initial: bool) -> None:
    headers = (("retry-after", "7"), ("x-should-retry", "false"), ("x-http-status", "503"))
    details = error_details("out of memory", "server_error", "out_of_memory")

    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        if initial:
            await context.send_initial_metadata(headers)
        trailing = (details,) if initial else (details, *headers)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "", trailing)
        yield event("never")

    upstream.chat = chat
    reply = await send(gateway.port, "POST", CHAT, body=b"{}")
    assert reply.status == 503
    assert reply.error["code"] == "out_of_memory"
    assert (reply.headers["retry-after"], reply.headers["x-should-retry"]) == ("7", "false")
    assert "x-http-status" not in reply.headers


async def test_unary_methods_fail_like_streaming_ones(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    reply = await send(gateway.port, "GET", "/v1/models/nothing")
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/"),
        ("GET", "/unknown"),
        ("GET", "/v1/unknown"),
        ("POST", "/chat/completions"),
        ("GET", CHAT),
        ("PUT", "/v1/models"),
    ],
)
async def test_unknown_urls(gateway: RunningGateway, upstream: Upstream, method: str, path: str) -> None:
    reply = await send(gateway.port, method, f"{path}?key=secret", body=b"{}" if method == "POST" else None)
    assert reply.status == 404
    assert reply.error["message"] == f"Invalid URL ({method} {path})"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit(gateway: RunningGateway, upstream: Upstream, chunked: bool) -> None:
    body = b"x" * (LIMIT + 1)
    reply = await send(gateway.port, "POST", CHAT, body=[body[:LIMIT], body[LIMIT:]] if chunked else body)
    assert reply.status == 413
    assert reply.error["code"] == "request_too_large"
    assert f"{LIMIT} bytes" in reply.error["message"]
    assert "ALLM_MAX_BODY_BYTES" in reply.error["message"]
    assert not upstream.bodies


async def test_a_body_far_over_the_limit_still_gets_its_answer(gateway: RunningGateway, upstream: Upstream) -> None:
    """The client must read while it sends, as the official SDKs do."""
    async with asyncio.timeout(60), posting(gateway.port, CHAT, b"x" * 20 * LIMIT, wait=False) as reader:
        assert (await reader.readline()).split()[1] == b"413"
        assert b"request_too_large" in await reader.readuntil(b"}}")


async def test_an_upgrade_is_refused_and_not_taken_for_a_page(gateway: RunningGateway, upstream: Upstream) -> None:
    reply = await send(gateway.port, "GET", "/v1/models", {"connection": "upgrade", "upgrade": "websocket"})
    assert reply.status == 403
    assert reply.error["code"] is None


async def test_headers_over_the_limit(gateway: RunningGateway, upstream: Upstream) -> None:
    reply = await send(gateway.port, "GET", "/v1/models", {"x-large": "x" * 70_000})
    assert reply.status == 431


async def test_without_a_service(gateway: RunningGateway, upstream: Upstream, socket_folder: Any) -> None:
    """While the service is down: 503 with Retry-After, also from /healthz. After its restart: normal service."""
    assert (await send(gateway.port, "GET", "/healthz")).status == 200
    await upstream.stop()
    try:
        await _until(gateway, status=503)
        reply = await send(gateway.port, "POST", CHAT, body=b"{}")
        assert reply.status == 503
        assert reply.error["code"] == "service_unavailable"
        assert reply.error["type"] == "server_error"
        assert int(reply.headers["retry-after"]) > 0
        assert (await send(gateway.port, "POST", "/v1/messages", body=b"{}")).status == 529, "Anthropic's word for it"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
            stub = chat_service_pb2_grpc.ChatServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest()).read()
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
            assert "text service" in raised.value.details()
        assert (await send(gateway.port, "GET", "/v1/models")).status == 200, "the catalog is another service"
    finally:
        await upstream.start(f"unix:{socket_folder / 'text.sock'}")
    await _until(gateway, status=200)
    assert (await send(gateway.port, "POST", CHAT, body=b"{}")).status == 200


async def test_without_a_catalog(
    gateway: RunningGateway, upstream: Upstream, catalog: ScriptedCatalog, socket_folder: Any
) -> None:
    """Inference continues and the gateway is healthy; requests for models fail with the name of the missing service."""
    await catalog.stop()
    try:
        for _ in range(40):  # before and after the health check notices
            reply = await send(gateway.port, "GET", "/v1/models")
            assert reply.status == 503
            assert (reply.error["code"], reply.error["type"]) == ("service_unavailable", "server_error")
            assert "catalog service" in reply.error["message"]
            assert int(reply.headers["retry-after"]) > 0
            assert (await send(gateway.port, "GET", "/healthz")).status == 200
            assert (await send(gateway.port, "POST", CHAT, body=b"{}")).status == 200
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                stub = model_service_pb2_grpc.ModelServiceStub(channel)
                await stub.ListModels(model_service_pb2.ListModelsRequest())
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
            assert "catalog service" in raised.value.details()
    finally:
        await catalog.start(f"unix:{socket_folder / 'catalog.sock'}")
    await _until(gateway, status=200, path="/v1/models")


async def _until(gateway: RunningGateway, status: int, path: str = "/healthz") -> None:
    async with asyncio.timeout(60):
        while (await send(gateway.port, "GET", path)).status != status:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/%ff%fe"),
        ("GET", "/v1/responses/%ff/input_items"),
        ("GET", "/v1/responses/resp_1/input_items?after=%ff"),
        ("POST", "/v1/responses/%00/cancel"),
        ("POST", "/v1/responses/%0d%0a/cancel"),
        ("DELETE", "/v1/responses/%7f"),
        ("GET", "/v1/models/%ff"),
        ("GET", "/v1/models/org%2F%ed%a0%80"),
        ("GET", "/v1/models?state=%ff"),
        ("DELETE", "/v1/api_keys/%ff"),
        ("GET", "/v1/images/files/%ff.png"),
        ("GET", "/v1/images/files/%0a"),
    ],
)
async def test_a_path_that_no_service_can_read_is_refused(
    gateway: RunningGateway, upstream: Upstream, method: str, path: str
) -> None:
    reply = await send(gateway.port, method, path)
    assert reply.status == 400
    said = "This URL cannot be read: its percent-encoding is broken, is not UTF-8, or has control characters."
    assert reply.error == {"message": said, "type": "invalid_request_error", "param": None, "code": None}
    assert upstream.metadata == []
