"""ALLM_AUTH=keys: a real Envoy checks each request with a real authorizer, in front of scripted services."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from allm.envoy import external_auth_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from grpc_health.v1 import health_pb2

from services.auth.identity import ADMIN, HEADER, INFERENCE, Identity, sign, verify
from services.auth.identity_keys import AUTHORIZER
from services.auth.key_format import key_hash
from services.authorizer.gatekeeper import Gatekeeper
from services.authorizer.key_table import KeyTable, KnownKey
from services.authorizer.servicer import AuthorizationServicer
from tests.gateway.envoy_process import LISTED_ORIGIN, RunningGateway, gateway_settings, running_gateway
from tests.gateway.key_callers import CREATE_KEY, LIST, LOAD, PROTOCOLS, WATCH_MACHINE, Way, ask, bearer
from tests.gateway.scripted_catalog import ScriptedCatalog
from tests.gateway.upstream import Upstream, serve, text_upstream
from tests.gateway.wire import posting, send
from tests.identities import KEYS, PUBLIC

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/v1/chat/completions"
USER, OPERATOR, OLD, BUSY = "sk-allm-user", "sk-allm-operator", "sk-allm-old", "sk-allm-busy"
WATCH_KEYS = "/allm.keys.v1.KeyService/WatchKeys"
RELEASE = "/allm.models.v1.ResidencyService/Release"


def keys() -> list[KnownKey]:
    """Returns the keys that the authorizer knows."""
    return [
        _known(USER, (INFERENCE,)),
        _known(OPERATOR, (INFERENCE, ADMIN)),
        _known(OLD, (INFERENCE, ADMIN), expires=int(time.time()) - 1),
        *(_known(f"{BUSY}-{protocol}", (INFERENCE,), requests_per_minute=1) for protocol in PROTOCOLS),
    ]


def _known(key: str, scopes: tuple[str, ...], **more: Any) -> KnownKey:
    return KnownKey(id=f"key_{key.removeprefix('sk-allm-')}", sha256=key_hash(key), scopes=scopes, **more)


@dataclass
class Guarded:
    """An Envoy that uses an authorizer, with the services behind it."""

    gateway: RunningGateway
    upstream: Upstream
    catalog: ScriptedCatalog
    table: KeyTable

    @property
    def port(self) -> int:
        return self.gateway.port


@asynccontextmanager
async def authorizing(address: str, table: KeyTable) -> AsyncIterator[None]:
    """Runs an authorizer during the block."""
    server = grpc.aio.server()
    servicer = AuthorizationServicer(Gatekeeper(table, KEYS[AUTHORIZER]))
    external_auth_pb2_grpc.add_AuthorizationServicer_to_server(servicer, server)
    await serve(server, address)
    try:
        yield
    finally:
        await server.stop(0)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def standing() -> AsyncIterator[Guarded]:
    upstream, catalog, table = Upstream(), ScriptedCatalog(), KeyTable()
    table.fill(keys())
    with tempfile.TemporaryDirectory(prefix="allm-keys-") as name:
        await upstream.start(text := f"unix:{name}/text.sock")
        await catalog.start(models := f"unix:{name}/catalog.sock")
        authorizer = f"unix:{name}/authorizer.sock"
        settings = gateway_settings(cors_origins=(LISTED_ORIGIN,), auth="keys", authorizer=authorizer)
        try:
            async with (
                authorizing(authorizer, table),
                running_gateway(Path(name), (text,), models, settings) as gateway,
            ):
                yield Guarded(gateway, upstream, catalog, table)
        finally:
            await upstream.stop()
            await catalog.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(standing: Guarded) -> Guarded:
    """Returns the shared gateway, healthy, with its scripts and recorded calls reset."""
    await standing.gateway.finds_all_healthy("authorizer")
    standing.upstream.forget()
    standing.catalog.forget()
    return standing


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_key_lets_in_as_its_owner_and_ends_at_the_gateway(guarded: Guarded, protocol: str) -> None:
    outcome = await ask(protocol, guarded.port, LIST, bearer(USER))
    assert outcome.status == "OK"
    (seen,) = guarded.catalog.metadata
    assert seen["x-client-id"] == "key_user"
    assert verify(seen[HEADER], PUBLIC, time.time()).scopes == {INFERENCE}
    assert "authorization" not in seen
    assert USER not in str(seen)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("headers", "reported"),
    [
        ({}, "Missing API key"),
        ({"authorization": "Basic dXNlcjpwYXNz"}, "Missing API key"),
        ({"api-key": USER}, "Missing API key"),
        ({"authorization": "Basic dXNlcjpwYXNz", "x-api-key": USER}, "Missing API key"),
        ({"x-api-key": "sk-allm-wrong"}, "Incorrect API key"),
        (bearer("sk-allm-wrong"), "Incorrect API key"),
        (bearer(f"{USER}, Bearer {USER}"), "Incorrect API key"),
        (bearer(OLD), "key_old has expired"),
    ],
    ids=["missing", "other-scheme", "other-header", "first-header", "wrong-x", "wrong", "two", "expired"],
)
async def test_calls_without_a_valid_key_are_refused(
    guarded: Guarded, protocol: str, headers: dict[str, str], reported: str
) -> None:
    for way in (LIST, LOAD, CREATE_KEY):
        outcome = await ask(protocol, guarded.port, way, headers)
        assert (outcome.status, outcome.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
        assert reported in outcome.message
    assert not guarded.catalog.metadata
    assert not guarded.upstream.metadata


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_key_in_anthropics_header(guarded: Guarded, protocol: str) -> None:
    assert (await ask(protocol, guarded.port, LIST, {"x-api-key": USER})).status == "OK"
    both = await ask(protocol, guarded.port, LIST, {"x-api-key": "sk-allm-wrong", **bearer(USER)})
    assert both.status == "OK", "the other header comes first"
    for seen in guarded.catalog.metadata:
        assert seen["x-client-id"] == "key_user"
        assert not {"authorization", "x-api-key"} & set(seen)
        assert "sk-allm" not in str(seen)


async def test_anthropics_clients_get_a_refusal_in_their_shape(guarded: Guarded) -> None:
    reply = await send(guarded.port, "POST", "/v1/messages", {"x-api-key": "sk-allm-wrong"}, b"{}")
    assert (reply.status, reply.json["error"]["type"]) == (401, "authentication_error")
    assert "Incorrect API key" in reply.json["error"]["message"]
    assert reply.json["request_id"] == reply.headers["request-id"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_revoked_key_is_refused_at_once(guarded: Guarded, protocol: str) -> None:
    guarded.table.put(_known("sk-allm-gone", (INFERENCE,)))
    assert (await ask(protocol, guarded.port, LIST, bearer("sk-allm-gone"))).status == "OK"
    guarded.table.remove("key_gone")
    outcome = await ask(protocol, guarded.port, LIST, bearer("sk-allm-gone"))
    assert (outcome.status, "revoked" in outcome.message) == ("UNAUTHENTICATED", True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("way", [LOAD, CREATE_KEY], ids=["models", "keys"])
async def test_managing_needs_the_scope(guarded: Guarded, protocol: str, way: Way) -> None:
    outcome = await ask(protocol, guarded.port, way, bearer(USER))
    assert (outcome.status, outcome.reason) == ("PERMISSION_DENIED", "FORBIDDEN")
    assert "scope 'admin'" in outcome.message
    assert not guarded.catalog.metadata
    if way is LOAD:
        assert (await ask(protocol, guarded.port, way, bearer(OPERATOR))).status == "OK"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_over_the_rate(guarded: Guarded, protocol: str) -> None:
    key = bearer(f"{BUSY}-{protocol}")
    first, second = await ask(protocol, guarded.port, LIST, key), await ask(protocol, guarded.port, LIST, key)
    assert first.status == "OK"
    assert first.headers
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert (second.status, second.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    assert "1 requests per minute" in second.message
    assert second.headers
    assert 0 < int(second.headers["retry-after"]) <= 60
    assert (second.headers["x-ratelimit-limit-requests"]) == "1"
    assert len(guarded.catalog.metadata) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_forged_headers_are_of_no_use(guarded: Guarded, protocol: str) -> None:
    """Even a correctly signed identity is ignored: somebody may have captured it from a service's traffic."""
    operator = Identity("key_operator", frozenset((INFERENCE, ADMIN)), expires=int(time.time()) + 60)
    forged = {HEADER: sign(operator, KEYS[AUTHORIZER]), "x-client-id": "key_operator"}
    assert (await ask(protocol, guarded.port, LIST, forged)).status == "UNAUTHENTICATED"
    assert (await ask(protocol, guarded.port, LOAD, {**forged, **bearer(USER)})).status == "PERMISSION_DENIED"
    assert not guarded.catalog.metadata
    assert (await ask(protocol, guarded.port, LIST, {**forged, **bearer(USER)})).status == "OK"
    (seen,) = guarded.catalog.metadata
    assert (seen["x-client-id"], verify(seen[HEADER], PUBLIC, time.time()).subject) == ("key_user", "key_user")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_health_needs_no_key_and_claims_nothing(guarded: Guarded, protocol: str) -> None:
    way = Way("GET", "/healthz", "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest())
    assert (await ask(protocol, guarded.port, way, {HEADER: "forged"})).status == "OK"


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/../v1/models", "/grpc.health.v1.Health/%2e%2e/v1/models"])
async def test_nothing_else_passes_for_health(guarded: Guarded, path: str) -> None:
    assert (await send(guarded.port, "GET", path)).status == 401


async def test_preflights_need_no_key_and_pages_may_read_why_they_were_refused(guarded: Guarded) -> None:
    asked = {"origin": LISTED_ORIGIN, "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization"
    allowed = await send(guarded.port, "OPTIONS", CHAT, asked)
    assert (allowed.status, "authorization" in allowed.headers["access-control-allow-headers"]) == (200, True)
    refused = await send(guarded.port, "POST", CHAT, {"origin": LISTED_ORIGIN}, b"{}")
    assert refused.status == 401
    assert refused.headers["access-control-allow-origin"] == LISTED_ORIGIN
    assert "x-ratelimit-remaining-requests" in refused.headers["access-control-expose-headers"]


async def test_an_error_is_openais_with_its_headers(guarded: Guarded) -> None:
    reply = await send(guarded.port, "POST", CHAT, bearer("sk-allm-wrong"), b"{}")
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert (reply.error["type"], reply.error["param"], reply.error["code"]) == (
        "invalid_request_error",
        None,
        "invalid_api_key",
    )
    assert not [name for name in reply.headers if name.startswith(("grpc-", "x-envoy-"))]
    assert "sk-allm-wrong" not in reply.body.decode()


async def test_stream_passes_unchanged(guarded: Guarded) -> None:
    reply = await send(guarded.port, "POST", CHAT, bearer(USER), b'{"model": "m"}')
    assert reply.body == b"data: 1\n\ndata: 2\n\n"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{guarded.port}") as channel:
        stub = chat_service_pb2_grpc.ChatServiceStub(channel)
        request = chat_service_pb2.StreamChatCompletionRequest(model="m")
        call = stub.StreamChatCompletion(request, metadata=(("authorization", f"Bearer {USER}"),))
        assert [event.WhichOneof("event") async for event in call] == ["started", "delta", "delta", "finished"]


async def test_refused_call_gets_its_error_before_the_body_is_sent(guarded: Guarded) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n".encode()
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
        writer.write(head)
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()
    async with asyncio.timeout(60), posting(guarded.port, CHAT, b"x" * 100_000_000, wait=False) as stream:
        assert (await stream.readline()).split()[1] == b"401", "and nobody waits for the rest"


@pytest.mark.parametrize("protocol", ["grpc", "grpc-web"])
async def test_to_watch_the_machine_is_for_operators(guarded: Guarded, protocol: str) -> None:
    assert (await ask(protocol, guarded.port, WATCH_MACHINE)).status == "UNAUTHENTICATED"
    outcome = await ask(protocol, guarded.port, WATCH_MACHINE, bearer(USER))
    assert (outcome.status, outcome.reason) == ("PERMISSION_DENIED", "FORBIDDEN")
    assert "scope 'admin'" in outcome.message
    assert not guarded.catalog.metadata
    assert (await ask(protocol, guarded.port, WATCH_MACHINE, bearer(OPERATOR))).status == "OK"
    assert len(guarded.catalog.metadata) == 1


@pytest.mark.parametrize("path", [WATCH_KEYS, RELEASE, RELEASE.replace("Release", "GetResidency")])
@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc-web+proto"])
async def test_internal_methods_are_closed_to_operators_too(guarded: Guarded, path: str, kind: str) -> None:
    for spelled in (path, f"{path}?x=1", path.replace("/allm", "/%61llm"), path.replace("Service/", "Service/./")):
        reply = await send(guarded.port, "POST", spelled, {**bearer(OPERATOR), "content-type": kind}, bytes(5))
        assert reply.headers["grpc-status"] == str(grpc.StatusCode.PERMISSION_DENIED.value[0]), spelled
    assert not guarded.catalog.metadata


async def test_a_key_is_in_no_log(guarded: Guarded) -> None:
    reply = await send(guarded.port, "GET", "/v1/models", bearer("sk-allm-secret-9"))
    log = "\n".join(await guarded.gateway.logged(reply.headers["x-request-id"]))
    assert "ext_authz_denied" in log
    reply = await send(guarded.port, "GET", "/v1/models", bearer(USER))
    log = "\n".join(await guarded.gateway.logged(reply.headers["x-request-id"]))
    assert "key_user" in log
    assert "secret-9" not in log
    assert USER not in log


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_before_the_authorizer_knows_any_keys(guarded: Guarded, protocol: str) -> None:
    guarded.table.loaded = False
    try:
        outcome = await ask(protocol, guarded.port, LIST, bearer("sk-allm-new"))
    finally:
        guarded.table.loaded = True
    assert (outcome.status, outcome.reason) == ("UNAVAILABLE", "INTERNAL")
    assert "catalog" in outcome.message
    assert outcome.headers
    assert outcome.headers["retry-after"] == "2"


async def test_calls_are_refused_without_the_authorizer_and_admitted_with_it() -> None:
    table = KeyTable()
    table.fill(keys())
    async with text_upstream("allm-keys-") as (folder, upstream, text):
        authorizer = f"unix:{folder}/authorizer.sock"
        settings = gateway_settings(auth="keys", authorizer=authorizer)
        async with running_gateway(folder, (text,), text, settings) as gateway:
            await gateway.finds_all_healthy()
            for protocol in PROTOCOLS:
                outcome = await ask(protocol, gateway.port, LIST, bearer(USER))
                assert outcome.status == "UNAVAILABLE"
                assert "authorizer cannot be reached" in outcome.message
            reply = await send(gateway.port, "POST", CHAT, bearer(USER), b"{}")
            assert (reply.error["code"], reply.headers["retry-after"]) == ("service_unavailable", "2")
            assert (await send(gateway.port, "GET", "/healthz")).status == 503
            assert not upstream.bodies
            async with authorizing(authorizer, table):
                async with asyncio.timeout(60):
                    while (await send(gateway.port, "POST", CHAT, bearer(USER), b"{}")).status != 200:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            assert upstream.bodies


async def test_without_keys_nothing_is_asked() -> None:
    """All other tests in this folder run without keys; this one shows the contrast."""
    async with (
        text_upstream("allm-keys-") as (folder, upstream, text),
        running_gateway(folder, (text,), text, gateway_settings(auth="open")) as gateway,
    ):
        await gateway.finds_all_healthy()
        reply = await send(gateway.port, "POST", CHAT, {**bearer(USER), HEADER: "forged"}, b"{}")
        assert reply.status == 200
        (seen,) = upstream.metadata
        assert seen["x-client-id"] == "anonymous"
        assert "authorization" not in seen
        assert HEADER not in seen
