"""Errors of services, gRPC, the catalog and Envoy reach Ollama's clients in Ollama's format, and `/` greets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.envoy_process import RunningGateway
from tests.gateway.scripted_catalog import ScriptedCatalog
from tests.gateway.upstream import Upstream, error_details, event
from tests.gateway.wire import Reply, send

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/api/chat"
LIMIT = 1024 * 1024


def problem(reply: Reply) -> tuple[int, str]:
    """Returns the status and the message of an error in Ollama's shape."""
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json) == {"error"}, reply
    assert isinstance(reply.json["error"], str)
    assert "request-id" not in reply.headers
    return reply.status, reply.json["error"]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, None, 400),
        (403, "model_not_allowed", 403),
        (404, "model_not_found", 404),
        (429, "rate_limit_exceeded", 429),
        (429, "overloaded", 503),
        (501, "unsupported", 400),
        (503, "model_not_ready", 503),
        (500, "internal", 500),
        (504, "timeout", 504),
    ],
)
async def test_errors_of_a_service(
    gateway: RunningGateway, upstream: Upstream, status: int, code: str | None, expected: int
) -> None:
    message = f'bad "message":"x", \\ and 100%s\n\u2603 {code}'
    details = error_details(message, "server_error", code, param='"message":"y"')

    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        metadata = (details, ("x-http-status", str(status)), ("retry-after", "7"))
        await context.abort(grpc.StatusCode.INTERNAL, "not shown", metadata)
        yield event("never")

    upstream.chat = chat
    reply = await send(gateway.port, "POST", CHAT, body=b"{}")
    assert problem(reply) == (expected, message)
    assert reply.headers["retry-after"] == "7"


async def test_a_body_arrives_whatever_its_type(gateway: RunningGateway, upstream: Upstream) -> None:
    """curl sends a form's content type unless a header sets another."""
    for kind in ("application/json", "application/x-www-form-urlencoded"):
        reply = await send(gateway.port, "POST", CHAT, {"content-type": kind}, b'{"a":1}')
        assert reply.status == 200


async def test_an_error_that_no_facade_wrote(gateway: RunningGateway, upstream: Upstream) -> None:
    """The upstream of these tests does not serve this method."""
    status, message = problem(await send(gateway.port, "POST", "/api/generate", body=b"{}"))
    assert status == 501
    assert message


async def test_errors_of_envoy(gateway: RunningGateway, upstream: Upstream) -> None:
    unknown = await send(gateway.port, "POST", "/api/create", body=b"{}")
    assert problem(unknown) == (404, "Invalid URL (POST /api/create)")
    assert problem(await send(gateway.port, "POST", CHAT, body=b"x" * (LIMIT + 1)))[0] == 413
    assert problem(await send(gateway.port, "POST", CHAT, {"host": "evil.example"}, b"{}"))[0] == 403


async def test_pages_of_other_origins_can_neither_ask_nor_manage(
    gateway: RunningGateway, upstream: Upstream, catalog: ScriptedCatalog
) -> None:
    for method, path in (("POST", CHAT), ("POST", "/api/pull"), ("DELETE", "/api/delete")):
        status, message = problem(await send(gateway.port, method, path, {"origin": "http://evil.example"}, b"{}"))
        assert status == 403
        assert "ALLM_CORS_ORIGINS" in message
    assert not upstream.metadata
    assert not catalog.metadata


async def test_other_paths_keep_openais_shape(gateway: RunningGateway, upstream: Upstream) -> None:
    for path in ("/apis", f"/v1/unknown?x={CHAT}"):
        reply = await send(gateway.port, "GET", path)
        assert (reply.status, reply.error["code"]) == (404, None)


async def test_the_root_greets_clients_that_are_no_browsers(gateway: RunningGateway, upstream: Upstream) -> None:
    for headers in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
        reply = await send(gateway.port, "GET", "/", headers)
        assert (reply.status, reply.body) == (200, b"Ollama is running")
        assert reply.headers["content-type"].startswith("text/plain")
        head = await send(gateway.port, "HEAD", "/", headers)
        assert (head.status, head.body) == (200, b"")
