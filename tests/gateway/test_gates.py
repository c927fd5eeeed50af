"""The checks of `Host` and `Origin`, and CORS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.case import case
from tests.gateway.envoy_process import (
    LISTED_HOST,
    LISTED_ORIGIN,
    NOWHERE,
    RunningGateway,
    gateway_settings,
    running_gateway,
)
from tests.gateway.upstream import Upstream
from tests.gateway.wire import Reply, send

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "LOCALHOST:8080", "127.0.0.1:9", "127.0.0.5", "[::1]:80", LISTED_HOST]
)
async def test_known_hosts_are_let_in(gateway: RunningGateway, upstream: Upstream, host: str) -> None:
    assert (await send(gateway.port, "GET", "/v1/models", {"host": host})).status == 200


async def test_a_long_list_of_hosts_is_let_in(socket_folder: Path) -> None:
    folder = socket_folder / "hosts"
    folder.mkdir()
    names = tuple(f"models-{number}.inference.internal.example.com" for number in range(40))
    async with running_gateway(folder, (NOWHERE,), NOWHERE, gateway_settings(allowed_hosts=names)) as running:
        assert (await send(running.port, "GET", "/v1/models", {"host": names[-1]})).status == 503, "there is no service"
        assert (await send(running.port, "GET", "/v1/models", {"host": "models-40.example.com"})).status == 403


async def test_strange_hosts_are_refused(gateway: RunningGateway, upstream: Upstream) -> None:
    for host in [
        "evil.example",
        "localhost.evil.example",
        "evil.example:8080",
        "0.0.0.1",
        "192.168.1.2",
        f"x{LISTED_HOST}",
    ]:
        for method in ["GET", "POST", "OPTIONS"]:
            with case(host=host, method=method):
                path = "/v1/models" if method == "GET" else CHAT
                reply = await send(gateway.port, method, path, {"host": host}, b"{}" if method == "POST" else None)
                assert reply.status == 403
                assert reply.error["code"] == "host_not_allowed"
                assert host in reply.error["message"]
                assert "ALLM_ALLOWED_HOSTS" in reply.error["message"]
                assert not upstream.metadata


async def simple_post(port: int, origin: str, host: str = "localhost:8080") -> Reply:
    """Sends a request as a browser does for a form or a `no-cors` fetch: without a preflight."""
    return await send(port, "POST", CHAT, {"origin": origin, "host": host, "content-type": "text/plain"}, b"{}")


async def test_pages_of_other_origins_are_refused(gateway: RunningGateway, upstream: Upstream) -> None:
    for origin in [
        "http://evil.example",
        "null",
        "http://localhost:3000",  # another program on this machine
        "http://127.0.0.1:8080",  # the same program under another name is another origin
        "http://evil.example/http://localhost:8080",
        f"{LISTED_ORIGIN}.evil.example",
        "http://appXexample:3000",
        "http://localhost:8080,http://evil.example",
        "http://LISTED",
        "",
    ]:
        with case(origin=origin):
            reply = await simple_post(gateway.port, origin)
            assert reply.status == 403
            assert reply.error["code"] == "origin_not_allowed"
            assert "ALLM_CORS_ORIGINS" in reply.error["message"]
            assert "access-control-allow-origin" not in reply.headers
            assert not upstream.metadata


@pytest.mark.parametrize("origin", ["http://localhost:8080", "https://localhost:8080", LISTED_ORIGIN])
async def test_own_and_listed_pages_are_let_in(gateway: RunningGateway, upstream: Upstream, origin: str) -> None:
    assert (await simple_post(gateway.port, origin)).status == 200


async def test_a_listed_page_may_read_answers_and_errors(gateway: RunningGateway, upstream: Upstream) -> None:
    for path in ("/v1/models", "/v1/models/nothing", "/v1/unknown"):
        reply = await send(gateway.port, "GET", path, {"origin": LISTED_ORIGIN})
        assert reply.headers["access-control-allow-origin"] == LISTED_ORIGIN, path
        assert "x-request-id" in reply.headers["access-control-expose-headers"]


async def preflight(port: int, origin: str) -> Reply:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    return await send(port, "OPTIONS", CHAT, {"origin": origin, **asked})


async def test_preflight_of_a_listed_page(gateway: RunningGateway, upstream: Upstream) -> None:
    reply = await preflight(gateway.port, LISTED_ORIGIN)
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == LISTED_ORIGIN
    assert {"POST", "GET", "DELETE"} <= set(reply.headers["access-control-allow-methods"].split(", "))
    allowed = set(reply.headers["access-control-allow-headers"].split(", "))
    assert {"authorization", "content-type", "x-stainless-retry-count", "x-grpc-web"} <= allowed
    assert not upstream.metadata


async def test_preflight_of_another_page(gateway: RunningGateway, upstream: Upstream) -> None:
    reply = await preflight(gateway.port, "http://evil.example")
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers
