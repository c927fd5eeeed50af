"""REST through the gateway: requests as the service sees them, and their responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.envoy_process import RunningGateway
from tests.gateway.scripted_catalog import ScriptedCatalog
from tests.gateway.upstream import Upstream, event
from tests.gateway.wire import posting, send

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/v1/chat/completions"


async def test_body_reaches_the_service_byte_for_byte(gateway: RunningGateway, upstream: Upstream) -> None:
    body = b'{"b": 1, "a": null,  "unknown": 9007199254740993}'
    reply = await send(gateway.port, "POST", CHAT, {"content-type": "application/json"}, body)
    assert upstream.bodies == [body]
    assert (reply.status, reply.body) == (200, b"data: 1\n\ndata: 2\n\n")
    assert reply.headers["content-type"] == "text/event-stream"


async def test_a_body_without_content_type_is_taken(gateway: RunningGateway, upstream: Upstream) -> None:
    reply = await send(gateway.port, "POST", CHAT, body=b"{}")
    assert reply.status == 200
    assert upstream.bodies == [b"{}"]


async def test_events_leave_one_by_one(gateway: RunningGateway, upstream: Upstream) -> None:
    first_was_read = asyncio.Event()

    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        yield event("first")
        await first_was_read.wait()
        yield event("second")

    upstream.chat = chat
    async with asyncio.timeout(60), posting(gateway.port, CHAT, b"{}") as reader:
        await reader.readuntil(b'data: "first"\n\n')
        first_was_read.set()
        await reader.readuntil(b'data: "second"\n\n')


@pytest.mark.parametrize("path", ["org%2Fname", "org/name", "org%2fname"])
async def test_model_ids_may_hold_slashes(gateway: RunningGateway, catalog: ScriptedCatalog, path: str) -> None:
    reply = await send(gateway.port, "GET", f"/v1/models/{path}")
    assert (reply.status, reply.json) == (200, {"id": "org/name"})


async def test_colons_in_model_ids(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    """The route strips only the management verbs, and only if they are unescaped."""
    for path, name in (("llama3:8b", "llama3:8b"), ("a%3Aload", "a:load")):
        assert (await send(gateway.port, "GET", f"/v1/models/{path}")).json == {"id": name}
        assert (await send(gateway.port, "DELETE", f"/v1/models/{path}")).json == {"id": name, "deleted": True}


async def test_the_path_alone_names_the_model(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    assert (await send(gateway.port, "GET", "/v1/models/a?id=b")).json == {"id": "a"}
    assert (await send(gateway.port, "DELETE", "/v1/models/a?id=b")).json == {"id": "a", "deleted": True}


async def test_known_queries_arrive(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    assert (await send(gateway.port, "GET", "/v1/models?state=all&limit=x")).json["state"] == "all"


async def test_unknown_queries_are_ignored(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    reply = await send(gateway.port, "GET", "/v1/models?api-version=1&limit=x")
    assert (reply.status, reply.json) == (200, {"object": "list", "data": []})


async def test_responses_show_nothing_of_grpc_or_envoy(gateway: RunningGateway, upstream: Upstream) -> None:
    for reply in (
        await send(gateway.port, "GET", "/v1/models"),
        await send(gateway.port, "POST", CHAT, body=b"{}"),
        await send(gateway.port, "GET", "/v1/models/nothing"),
    ):
        assert not [name for name in reply.headers if name.startswith(("grpc-", "x-envoy-"))]
        assert reply.headers["server"] == "allm"


async def test_initial_metadata_become_headers(gateway: RunningGateway, upstream: Upstream) -> None:
    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        await context.send_initial_metadata((("cache-control", "no-cache"),))
        yield event(1)

    upstream.chat = chat
    reply = await send(gateway.port, "POST", CHAT, body=b"{}")
    assert reply.headers["cache-control"] == "no-cache"


async def test_a_request_id_is_shared_by_service_and_client(gateway: RunningGateway, catalog: ScriptedCatalog) -> None:
    reply = await send(gateway.port, "GET", "/v1/models", {"x-request-id": "made-up"})
    assert reply.headers["x-request-id"] == catalog.metadata[0]["x-request-id"] != "made-up"


async def test_clients_cannot_set_their_identity(
    gateway: RunningGateway, upstream: Upstream, catalog: ScriptedCatalog
) -> None:
    spoofed = {
        "x-client-id": "root",
        "x-http-status": "418",
        "x-envoy-original-path": "/x",
        "x-forwarded-for": "9.9.9.9",
    }
    await send(gateway.port, "GET", "/v1/models", spoofed)
    await send(gateway.port, "POST", CHAT, spoofed, b"{}")
    (to_text,), (to_catalog,) = upstream.metadata, catalog.metadata
    for metadata in (to_text, to_catalog):
        assert metadata["x-client-id"] == "anonymous"
        assert "x-http-status" not in metadata
        assert metadata["x-envoy-original-path"] != "/x"


async def test_clients_cannot_steer_the_proxy(gateway: RunningGateway, upstream: Upstream) -> None:
    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        await asyncio.sleep(0.2)
        yield event(1)

    upstream.chat = chat
    steering = {
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-upstream-stream-duration-ms": "1",
        "x-envoy-retry-grpc-on": "internal",
        "x-envoy-force-trace": "true",
    }
    assert (await send(gateway.port, "POST", CHAT, steering, b"{}")).status == 200
    assert not set(steering) & set(upstream.metadata[0])


async def test_http_1_0(gateway: RunningGateway, upstream: Upstream) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET /v1/models/x HTTP/1.0\r\nhost: localhost\r\n\r\n")
    async with asyncio.timeout(60):
        reply = await reader.read()
    writer.close()
    assert reply.split()[1] == b"200"
    assert reply.endswith(b'{"id": "x"}')


async def test_bodies_up_to_the_limit_pass_with_any_buffers(gateway: RunningGateway, upstream: Upstream) -> None:
    body = b"x" * 1024 * 1024  # larger than every per-connection buffer
    assert (await send(gateway.port, "POST", CHAT, body=body)).status == 200
    assert (await send(gateway.port, "POST", CHAT, body=[body[:500_000], body[500_000:]])).status == 200
    assert upstream.bodies == [body, body]
