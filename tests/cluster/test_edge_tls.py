"""TLS between clients and the gateway, as official clients speak it."""

from __future__ import annotations

import asyncio
import ssl
import sys
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
import pytest_asyncio
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody
from openai import AsyncOpenAI
from trustme import CA

from tests.cluster.certificates import issue
from tests.cluster.gateway_command import GatewayCommand, gateway_command
from tests.gateway.upstream import Upstream, event
from tests.ports import free_port
from tests.stack import environment

pytestmark = pytest.mark.asyncio(loop_scope="session")
SECONDS = 120
COMPLETION = (
    b'{"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0, '
    b'"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop", "logprobs": null}]}'
)


async def hello(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
    """Answers with a whole completion."""
    yield HttpBody(content_type="application/json", data=COMPLETION)


@dataclass
class Edge:
    """A gateway with TLS, its certificate, and its upstream."""

    command: GatewayCommand
    folder: Path  # of its certificate
    authority: CA
    upstream: Upstream

    @property
    def url(self) -> str:
        return f"https://localhost:{self.command.port}"

    def trusting(self, authority: CA | None = None) -> ssl.SSLContext:
        """Returns a client's TLS context that trusts one authority only."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        (authority or self.authority).configure_trust(context)
        return context

    def openai(self, authority: CA | None = None) -> AsyncOpenAI:
        client = httpx.AsyncClient(verify=self.trusting(authority))
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", http_client=client, max_retries=0)

    def channel(self, authority: CA | None = None) -> grpc.aio.Channel:
        root = (authority or self.authority).cert_pem.bytes()
        return grpc.aio.secure_channel(f"localhost:{self.command.port}", grpc.ssl_channel_credentials(root))

    async def connection(self, context: ssl.SSLContext) -> ssl.SSLObject:
        """Completes a handshake and closes the connection; returns its TLS session."""
        _, writer = await asyncio.open_connection(
            "127.0.0.1", self.command.port, ssl=context, server_hostname="localhost"
        )
        agreed: ssl.SSLObject = writer.get_extra_info("ssl_object")
        writer.close()
        return agreed

    async def certificate(self) -> bytes | None:
        """Returns the certificate that new clients get."""
        return (await self.connection(self.trusting())).getpeercert(binary_form=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    folder, authority = tmp_path_factory.mktemp("edge"), CA()
    made = issue(folder / "tls", authority, "localhost")
    upstream, text = Upstream(hello), f"127.0.0.1:{free_port()}"
    await upstream.start(text)
    try:
        async with gateway_command(folder, ALLM_GATEWAY_TEXT=text, **made.edge()) as command:
            running = Edge(command, folder / "tls", authority, upstream)
            async with httpx.AsyncClient(verify=running.trusting()) as client, asyncio.timeout(SECONDS):
                while (await client.get(f"{running.url}/healthz")).status_code != 200:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            yield running
    finally:
        await upstream.stop()


async def test_openai_python_comes_through_and_the_service_learns_how(edge: Edge) -> None:
    edge.upstream.forget()
    edge.upstream.chat = hello
    async with edge.openai() as client:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    assert answer.choices[0].message.content == "hello"
    assert edge.upstream.metadata[0]["x-forwarded-proto"] == "https"


async def test_grpc_comes_through(edge: Edge) -> None:
    async with edge.channel() as channel:
        stub = chat_service_pb2_grpc.ChatServiceStub(channel)
        call = stub.StreamChatCompletion(chat_service_pb2.StreamChatCompletionRequest(model="m"))
        assert [found.WhichOneof("event") async for found in call][-1] == "finished"


@pytest.mark.parametrize("trusted", [True, False])
async def test_commands_come_through_where_they_trust_it(edge: Edge, tmp_path: Path, trusted: bool) -> None:
    (edge.authority if trusted else CA()).cert_pem.write_to_path(tmp_path / "ca.pem")
    roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "ca.pem")}
    command = (sys.executable, "-m", "services.cli", "models", "list", "--address", edge.url)
    process = await asyncio.create_subprocess_exec(
        *command, env=environment(tmp_path, **roots), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    words, _ = await process.communicate()
    # This gateway has no catalog behind it.
    assert ("The catalog service is not available" if trusted else "allm does not answer on") in words.decode()


async def test_an_authority_that_did_not_vouch_for_it_is_no_good(edge: Edge) -> None:
    stranger = CA()
    async with edge.openai(stranger) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.models.list()
    async with edge.channel(stranger) as channel:
        stub = chat_service_pb2_grpc.ChatServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateChatCompletion(chat_service_pb2.CreateChatCompletionRequest(model="m"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_plain_http_and_plain_grpc_are_refused(edge: Edge) -> None:
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://localhost:{edge.command.port}/healthz")
    async with grpc.aio.insecure_channel(f"localhost:{edge.command.port}") as channel:
        stub = chat_service_pb2_grpc.ChatServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateChatCompletion(chat_service_pb2.CreateChatCompletionRequest(model="m"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_both_versions_of_http_are_agreed_on(edge: Edge, protocol: str) -> None:
    context = edge.trusting()
    context.set_alpn_protocols([protocol])
    assert (await edge.connection(context)).selected_alpn_protocol() == protocol


async def test_nothing_older_than_tls_1_2(edge: Edge) -> None:
    context = edge.trusting()
    context.set_ciphers("ALL:@SECLEVEL=0")  # otherwise the client would refuse, too
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError) as caught:
        await edge.connection(context)
    assert caught.value.reason == "TLSV1_ALERT_PROTOCOL_VERSION"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert (await edge.connection(context)).version() == "TLSv1.2"


async def test_a_new_certificate_is_taken_up_and_no_stream_ends_for_it(edge: Edge) -> None:
    go = asyncio.Event()

    async def waits(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        yield event("first")
        await go.wait()
        yield event("last")

    edge.upstream.chat = waits
    before = await edge.certificate()
    async with (
        asyncio.timeout(SECONDS),
        httpx.AsyncClient(verify=edge.trusting(), timeout=SECONDS) as client,
        client.stream("POST", f"{edge.url}/v1/chat/completions", json={}) as answer,
    ):
        pieces = answer.aiter_text()
        assert "first" in await anext(pieces)
        issue(edge.folder, edge.authority, "localhost")
        while await edge.certificate() == before:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        go.set()
        assert "last" in "".join([piece async for piece in pieces])
