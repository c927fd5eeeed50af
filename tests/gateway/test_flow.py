"""Clients that stop reading, and clients that disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from allm.openai.v1 import text_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.envoy_process import RunningGateway
from tests.gateway.upstream import Upstream, event
from tests.gateway.wire import posting, send

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHAT = "/v1/chat/completions"
CHUNK = b"x" * 16384
# The kernel's socket buffers of client and gateway grow to some MB each; Envoy's own buffers are small in comparison.
MOST_BYTES = 16 * 1024 * 1024
SLOW_READERS = 40


class Flood:
    """A script that answers with endless data and counts the bytes sent."""

    def __init__(self) -> None:
        self.sent = 0
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        try:
            while True:
                yield HttpBody(content_type="text/event-stream", data=CHUNK)
                self.sent += len(CHUNK)
                self.started.set()
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise

    async def stalled(self) -> int:
        """Waits until the stream stalls; returns the bytes sent so far."""
        before = -1
        while before != self.sent:
            before = self.sent
            assert before < MOST_BYTES, "data is being buffered without bound"
            await asyncio.sleep(0.5)
        return before


async def test_a_client_that_does_not_read_stops_the_service(gateway: RunningGateway, upstream: Upstream) -> None:
    upstream.chat = flood = Flood()
    async with asyncio.timeout(60), posting(gateway.port, CHAT, b"{}"):
        await flood.started.wait()
        assert await flood.stalled() < MOST_BYTES
        assert not flood.cancelled.is_set()
    async with asyncio.timeout(60):
        await flood.cancelled.wait()


async def test_many_such_clients_delay_no_other(gateway: RunningGateway, upstream: Upstream) -> None:
    """All clients share one connection to the service: slow readers must not use up its window."""
    floods: list[Flood] = []

    def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        floods.append(Flood())
        return floods[-1](request, context)

    upstream.chat = chat
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        release = asyncio.Event()

        async def read_nothing() -> None:
            async with posting(gateway.port, CHAT, b"{}"):
                await release.wait()

        for _ in range(SLOW_READERS):
            group.create_task(read_nothing())
        while len(floods) < SLOW_READERS:  # noqa: ASYNC110 - they are counted where they arrive
            await asyncio.sleep(0.05)
        await asyncio.gather(*(flood.stalled() for flood in floods))
        reply = await send(gateway.port, "GET", "/v1/models")
        release.set()
    assert reply.status == 200
    async with asyncio.timeout(60):
        for flood in floods:
            await flood.cancelled.wait()


async def test_a_rest_client_that_goes_away_cancels_the_call(gateway: RunningGateway, upstream: Upstream) -> None:
    cancelled = asyncio.Event()

    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        try:
            yield event("first")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    upstream.chat = chat
    async with asyncio.timeout(60):
        async with posting(gateway.port, CHAT, b"{}") as reader:
            await reader.readuntil(b'data: "first"\n\n')
        await cancelled.wait()


async def test_going_away_before_the_first_byte_cancels_too(gateway: RunningGateway, upstream: Upstream) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def chat(request: HttpBody, context: Any) -> AsyncIterator[HttpBody]:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        yield event("never")

    upstream.chat = chat
    async with asyncio.timeout(60):
        async with posting(gateway.port, CHAT, b"{}"):
            await running.wait()
        await cancelled.wait()


async def test_a_grpc_client_that_goes_away_cancels_the_call(gateway: RunningGateway, upstream: Upstream) -> None:
    upstream.chat = flood = Flood()
    async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        call = text_service_pb2_grpc.TextServiceStub(channel).CreateChatCompletion(HttpBody(data=b"{}"))
        async for _ in call:
            break
        call.cancel()
        await flood.cancelled.wait()
