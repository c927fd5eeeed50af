"""Errors of services, gRPC, the authorizer and Envoy reach Anthropic's clients in Anthropic's format."""

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
MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
ANTHROPICS = {"anthropic-version": "2023-06-01"}
LIMIT = 1024 * 1024


def problem(reply: Reply) -> tuple[int, str, str]:
    """Returns the status, the type and the message of an error in Anthropic's shape, which fits its headers."""
    assert reply.headers["content-type"] == "application/json"
    body = reply.json
    assert set(body) == {"type", "error", "request_id"}, reply
    assert body["type"] == "error"
    assert body["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    assert set(body["error"]) == {"type", "message"}
    return reply.status, body["error"]["type"], body["error"]["message"]


@pytest.mark.parametrize(
    ("status", "code", "headers", "expected"),
    [
        (400, None, {}, (400, "invalid_request_error")),
        (401, "invalid_api_key", {}, (401, "authentication_error")),
        (403, "model_not_allowed", {}, (403, "permission_error")),
        (404, "model_not_found", {}, (404, "not_found_error")),
        (413, "request_too_large", {}, (413, "request_too_large")),
        (429, "rate_limit_exceeded", {"retry-after": "7"}, (429, "rate_limit_error")),
        (429, "overloaded", {"retry-after": "7"}, (529, "overloaded_error")),
        (500, "internal", {}, (500, "api_error")),
        (501, "unsupported", {}, (501, "api_error")),
        (503, "model_not_ready", {"retry-after": "7"}, (529, "overloaded_error")),
        (503, "out_of_memory", {"x-should-retry": "false"}, (503, "api_error")),
        (504, "timeout", {}, (504, "timeout_error")),
    ],
)
async def test_errors_of_a_service(
    gateway: RunningGateway,
    upstream: Upstream,
    status: int,
    code: str | None,
    headers: dict[str, str],
    expected: tuple[int, str],
) -> None:
    message = f'bad "message":"x", \\ and 100%s\n\u2603 {code}'
    details = error_details(message, "server_error", code, param='"message":"y"')

    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        metadata = (details, ("x-http-status", str(status)), *headers.items())
        await context.abort(grpc.StatusCode.INTERNAL, "not shown", metadata)
        yield event("never")

    upstream.chat = chat
    reply = await send(gateway.port, "POST", CHAT, ANTHROPICS, b"{}")
    assert problem(reply) == (*expected, message)
    assert headers.items() <= reply.headers.items()
    assert (await send(gateway.port, "POST", CHAT, body=b"{}")).error["code"] == code, "others get OpenAI's shape"


async def test_an_error_that_no_facade_wrote(gateway: RunningGateway, upstream: Upstream) -> None:
    """The upstream of these tests does not serve this method."""
    status, kind, message = problem(await send(gateway.port, "POST", f"{MESSAGES}?beta=true", body=b"{}"))
    assert (status, kind) == (501, "api_error")
    assert message


async def test_errors_of_envoy(gateway: RunningGateway, upstream: Upstream) -> None:
    unknown = await send(gateway.port, "POST", f"{MESSAGES}/batches", body=b"{}")
    assert problem(unknown) == (404, "not_found_error", f"Invalid URL (POST {MESSAGES}/batches)")
    large = await send(gateway.port, "POST", MESSAGES, body=b"x" * (LIMIT + 1))
    assert problem(large)[:2] == (413, "request_too_large")
    stranger = await send(gateway.port, "POST", MESSAGES, {"host": "evil.example"}, b"{}")
    assert problem(stranger)[:2] == (403, "permission_error")
    page = await send(gateway.port, "POST", MESSAGES, {"origin": "http://evil.example"}, b"{}")
    assert problem(page)[:2] == (403, "permission_error")


async def test_other_paths_keep_openais_shape(gateway: RunningGateway, upstream: Upstream) -> None:
    for path in (f"{MESSAGES}x", "/v1/unknown", f"/v1/unknown?x={MESSAGES}"):
        reply = await send(gateway.port, "GET", path)
        assert (reply.status, reply.error["code"]) == (404, None)
        assert "request-id" not in reply.headers


async def test_errors_of_the_catalog(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    reply = await send(gateway.port, "GET", "/v1/models/nothing", ANTHROPICS)
    assert problem(reply)[:2] == (404, "not_found_error")


async def test_answers_name_their_request(gateway: RunningGateway, upstream: Upstream) -> None:
    reply = await send(gateway.port, "POST", CHAT, ANTHROPICS, b"{}")
    assert reply.status == 200
    assert reply.headers["request-id"] == reply.headers["x-request-id"]


async def test_a_head_request_has_no_body(gateway: RunningGateway, upstream: Upstream) -> None:
    reply = await send(gateway.port, "HEAD", MESSAGES)
    assert (reply.status, reply.body) == (404, b"")
