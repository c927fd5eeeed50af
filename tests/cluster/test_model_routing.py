"""Text services in groups of models, behind `allm gateway`: every way in which a request can name its model."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import pytest_asyncio
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.cluster.gateway_command import GatewayCommand, gateway_command
from tests.gateway.upstream import Upstream, event
from tests.gateway.wire import send
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/v1/chat/completions"
STREAM = "/allm.text.v1.ChatService/StreamChatCompletion"
JSON = {"content-type": "application/json"}
MODELS = "large=org/llama-70b,gpt-4o,qwen*;code=qwen-coder*"
NAMES = [
    ("org/llama-70b", "large"),
    ("gpt-4o", "large"),
    ("gpt-4o-mini", "default"),
    ("qwen3:8b", "large"),
    ("qwen-coder-30b", "code"),
    ("gpt.4o", "default"),
    ("smollm", "default"),
    ("", "default"),
]
MIB = 1024 * 1024


@dataclass
class Groups:
    """A gateway, and a text service for each group."""

    gateway: GatewayCommand
    upstreams: dict[str, Upstream]

    def asked(self) -> list[str]:
        """Returns the services that got requests, in any order, and resets the record."""
        asked = [name for name, upstream in self.upstreams.items() for _ in upstream.metadata]
        for upstream in self.upstreams.values():
            upstream.metadata.clear()
        return asked

    async def rest(self, body: bytes, headers: dict[str, str] | None = None, path: str = CHAT) -> str:
        """Sends a REST request, which must succeed; returns the service that got it."""
        self.asked()
        reply = await send(self.gateway.port, "POST", path, JSON if headers is None else headers, body)
        assert reply.status == 200, reply
        (name,) = self.asked()
        return name


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def groups(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Groups]:
    upstreams = {name: Upstream() for name in ("default", "large", "code")}
    addresses = {name: f"127.0.0.1:{free_port()}" for name in upstreams}
    for name, upstream in upstreams.items():
        await upstream.start(addresses[name])
    settings = {
        "ALLM_GATEWAY_TEXT": addresses["default"],
        # With a DNS name, as a headless service has one.
        "ALLM_GATEWAY_TEXT_GROUPS": f"large=localhost:{addresses['large'].partition(':')[2]};code={addresses['code']}",
        "ALLM_TEXT_GROUP_MODELS": MODELS,
    }
    try:
        async with gateway_command(tmp_path_factory.mktemp("groups"), **settings) as gateway:
            async with asyncio.timeout(60):
                for cluster in ("text", "text-large", "text-code"):
                    while not await gateway.count(f"cluster.{cluster}.membership_healthy"):  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.02)
            yield Groups(gateway, upstreams)
    finally:
        for upstream in upstreams.values():
            await upstream.stop()


@pytest.mark.parametrize(("model", "group"), NAMES)
async def test_rest_by_the_body(groups: Groups, model: str, group: str) -> None:
    body = json.dumps({"model": model, "input": "x"}).encode()
    assert await groups.rest(body) == group
    assert await groups.rest(body, path="/v1/responses") == group
    # A header is ignored when there is a body, and cannot override it.
    assert await groups.rest(body, {**JSON, "x-model": "gpt-4o", "x-envoy-original-path": ""}) == group


@pytest.mark.parametrize(("model", "group"), NAMES)
async def test_grpc_by_its_metadata(groups: Groups, model: str, group: str) -> None:
    groups.asked()
    async with grpc.aio.insecure_channel(groups.gateway.grpc_address) as channel:
        stub = chat_service_pb2_grpc.ChatServiceStub(channel)
        request = chat_service_pb2.StreamChatCompletionRequest(model=model or "m")
        events = [found async for found in stub.StreamChatCompletion(request, metadata=(("x-model", model),))]
    assert events[-1].HasField("finished")
    assert groups.asked() == [group]


@pytest.mark.parametrize(("model", "group"), [("qwen-coder", "code"), ("smollm", "default")])
@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
async def test_grpc_web_by_its_metadata(groups: Groups, model: str, group: str, text: bool) -> None:
    message = chat_service_pb2.StreamChatCompletionRequest(model=model).SerializeToString()
    framed = b"\0" + struct.pack(">I", len(message)) + message
    kind = "application/grpc-web-text" if text else "application/grpc-web+proto"
    headers = {"content-type": kind, "x-model": model}
    assert await groups.rest(base64.b64encode(framed) if text else framed, headers, STREAM) == group


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "Application/JSON"},
        {"content-type": "application/x-www-form-urlencoded"},
        {},
    ],
    ids=["charset", "case", "curl", "none"],
)
async def test_model_is_read_from_the_body_with_any_headers(groups: Groups, headers: dict[str, str]) -> None:
    assert await groups.rest(b'{"model": "gpt-4o"}', headers) == "large"


async def test_a_large_body_that_names_its_model_last(groups: Groups) -> None:
    body = json.dumps({"messages": "x" * (5 * MIB), "model": "gpt-4o"}).encode()
    assert await groups.rest(body) == "large"
    assert groups.upstreams["large"].bodies[-1] == body


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 7}', b'{"model": null}', b'{"model": {"a": "gpt-4o"}}'])
async def test_requests_without_a_model_are_refused_by_the_default_group(groups: Groups, body: bytes) -> None:
    assert await groups.rest(body) == "default"


async def test_stored_responses_are_anybody_s(groups: Groups) -> None:
    groups.asked()
    for method, path in (("GET", "/v1/responses/resp_1"), ("DELETE", "/v1/responses/resp_1")):
        assert (await send(groups.gateway.port, method, path)).status == 200
        assert groups.asked() == ["default"]


async def test_a_group_that_is_away_is_named_and_the_others_go_on(groups: Groups) -> None:
    """No request for it is sent to another group."""

    async def not_here(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no model of that group here")
        yield event("never")

    groups.upstreams["code"].chat = not_here
    groups.asked()
    reply = await send(groups.gateway.port, "POST", CHAT, JSON, b'{"model": "qwen-coder"}')
    assert reply.status == 503
    assert set(groups.asked()) == {"code"}
    await groups.upstreams["code"].stop()
    async with asyncio.timeout(60):
        while await groups.gateway.count("cluster.text-code.membership_healthy"):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
    reply = await send(groups.gateway.port, "POST", CHAT, JSON, b'{"model": "qwen-coder"}')
    assert (reply.status, reply.error["code"]) == (503, "service_unavailable")
    assert "text-code" in reply.error["message"]
    assert await groups.rest(b'{"model": "gpt-4o"}') == "large"
