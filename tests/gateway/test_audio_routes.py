"""Audio through the gateway: uploads pass unbuffered, and gRPC streams run in both directions simultaneously."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from allm.audio.v1 import transcription_service_pb2, transcription_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.audio_upstream import AudioUpstream
from tests.gateway.envoy_process import NOWHERE, RunningGateway, gateway_settings, running_gateway
from tests.gateway.upstream import error_details
from tests.gateway.wire import send

pytestmark = pytest.mark.asyncio(loop_scope="session")
PATH = "/v1/audio/transcriptions"
MIB = 1024 * 1024
KEPT = MIB  # bytes of a request that Envoy buffers for a retry
# The kernel's socket buffers and gRPC's windows grow to some MB each; Envoy's own buffers are small in comparison.
MOST_BYTES = 16 * MIB
NO_TEXT = ("127.0.0.1:1",)
numbers = itertools.count()


@dataclass
class Audio:
    """A gateway whose body limit is 1 MiB, and the scripted audio replicas behind it."""

    gateway: RunningGateway
    upstreams: list[AudioUpstream]

    @property
    def port(self) -> int:
        return self.gateway.port

    def memory(self) -> int:
        """Returns Envoy's resident memory in bytes."""
        return int(psutil.Process(self.gateway.process.pid).memory_info().rss)


@asynccontextmanager
async def audio(socket_folder: Path, count: int = 1) -> AsyncIterator[Audio]:
    folder = socket_folder / f"audio-{next(numbers)}"
    folder.mkdir()
    async with AsyncExitStack() as stack:
        upstreams = [AudioUpstream() for _ in range(count)]
        addresses = tuple(f"unix:{folder / f'audio-{number}.sock'}" for number in range(count))
        for upstream, address in zip(upstreams, addresses, strict=True):
            await upstream.start(address)
            stack.push_async_callback(upstream.stop)
        running = running_gateway(folder, NO_TEXT, NOWHERE, gateway_settings(max_body_bytes=MIB), addresses)
        yield Audio(await stack.enter_async_context(running), upstreams)


@asynccontextmanager
async def uploading(port: int, size: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Sends the headers of a POST of `size` bytes, but no body; leaving the block closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=b\r\n"
        writer.write(f"{head}content-length: {size}\r\nconnection: close\r\n\r\n".encode())
        yield reader, writer
    finally:
        writer.close()


async def put(writer: asyncio.StreamWriter, size: int) -> None:
    for _ in range(size // MIB):
        writer.write(b"x" * MIB)
        await writer.drain()
    writer.write(b"x" * (size % MIB))
    await writer.drain()


def numbered(size: int) -> bytes:
    """Returns bytes that encode their own offsets."""
    return b"".join(b"%08d" % at for at in range(size // 8)) + b"x" * (size % 8)


async def test_bytes_reach_the_service_before_the_last_was_sent(socket_folder: Path) -> None:
    """The upload may exceed ALLM_MAX_BODY_BYTES: the service sets its own limit."""
    size = 30 * MIB
    async with asyncio.timeout(60), audio(socket_folder) as running, uploading(running.port, size) as (reader, writer):
        await put(writer, size - 1)
        (upstream,) = running.upstreams
        await upstream.has_read(size - MOST_BYTES)
        writer.write(b"x")
        reply = await reader.read()
        assert reply.startswith(b"HTTP/1.1 200 ")
        assert str(size).encode() in reply
        assert upstream.content_types[0] == "multipart/form-data; boundary=b"


@pytest.mark.slow
async def test_envoys_memory_does_not_grow_with_an_upload(socket_folder: Path) -> None:
    async with asyncio.timeout(120), audio(socket_folder) as running:
        assert (await send(running.port, "POST", PATH, body=b"x" * 2 * MIB)).status == 200
        before = running.memory()
        most = 0
        async with uploading(running.port, 200 * MIB) as (reader, writer):
            for _ in range(20):
                await put(writer, 10 * MIB)
                most = max(most, running.memory() - before)
            reply = await reader.read()
        assert str(200 * MIB).encode() in reply
        assert most < MOST_BYTES


async def test_a_service_that_does_not_read_holds_the_client_back(socket_folder: Path) -> None:
    read = asyncio.Event()

    async def wait_first(messages: AsyncIterator[HttpBody], context: Any) -> AsyncIterator[HttpBody]:
        await read.wait()
        size = sum([len(message.data) async for message in messages])
        yield HttpBody(content_type="text/plain", data=str(size).encode())

    size, sent = 200 * MIB, 0

    async def sending(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while sent < size:
            await put(writer, MIB)
            sent += MIB

    async with asyncio.timeout(120), audio(socket_folder) as running, uploading(running.port, size) as (reader, writer):
        running.upstreams[0].script = wait_first
        before = running.memory()
        task = asyncio.create_task(sending(writer))
        stalled = -1
        while stalled != sent or not sent:
            stalled = sent
            assert sent < 2 * MOST_BYTES, "data is being buffered without bound"
            await asyncio.sleep(0.5)
        assert running.memory() - before < MOST_BYTES
        read.set()
        await task
        assert str(size).encode() in await reader.read()


def refusing(code: grpc.StatusCode, message: str, status: str, reads: int) -> Any:
    """Returns a script that reads at least `reads` bytes, then refuses the upload with a facade error."""

    async def refuse(messages: AsyncIterator[HttpBody], context: Any) -> AsyncIterator[HttpBody]:
        read = 0
        async for each in messages:
            read += len(each.data)
            if read >= reads:
                break
        details = error_details(message, "server_error", "refused")
        await context.abort(code, message, (details, ("x-http-status", status)))
        yield HttpBody()

    return refuse


async def test_a_refused_upload_reaches_the_second_replica_whole(socket_folder: Path) -> None:
    body = numbered(KEPT * 3 // 4)
    async with asyncio.timeout(60), audio(socket_folder, 2) as running:
        refused = running.upstreams[0]
        refused.script = refusing(grpc.StatusCode.UNAVAILABLE, "not ready", "503", reads=1)
        headers = {"content-type": "multipart/form-data; boundary=b"}
        replies = [await send(running.port, "POST", PATH, headers, body) for _ in range(10)]
        assert {(reply.status, reply.body) for reply in replies} == {(200, str(len(body)).encode())}
        assert [bytes(each) for each in running.upstreams[1].bodies] == [body] * 10
        lines = map(json.loads, await running.gateway.logged(replies[-1].headers["x-request-id"]))
        assert 2 in [line.get("attempts") for line in lines], "the balancer knew which one to ask"


async def test_overlong_conversation_gets_the_refusal(socket_folder: Path) -> None:
    async with asyncio.timeout(60), audio(socket_folder, 2) as running:
        for upstream in running.upstreams:
            upstream.script = refusing(grpc.StatusCode.UNAVAILABLE, "not ready", "503", reads=8 * MIB)
        reply = await send(running.port, "POST", PATH, body=b"x" * 8 * MIB)
        assert (reply.status, reply.error["message"]) == (503, "not ready")
        lines = map(json.loads, await running.gateway.logged(reply.headers["x-request-id"]))
        assert [line["attempts"] for line in lines if line.get("path") == PATH] == [1]


async def test_service_limit_is_reported_in_openais_format(socket_folder: Path) -> None:
    async with asyncio.timeout(60), audio(socket_folder) as running:
        running.upstreams[0].script = refusing(grpc.StatusCode.OUT_OF_RANGE, "too large", "413", reads=4 * MIB)
        reply = await send(running.port, "POST", PATH, body=b"x" * 4 * MIB)
        assert (reply.status, reply.error["message"]) == (413, "too large")


async def test_a_client_that_hangs_up_in_the_middle_cancels_the_call(socket_folder: Path) -> None:
    async with asyncio.timeout(60), audio(socket_folder) as running:
        (upstream,) = running.upstreams
        async with uploading(running.port, 30 * MIB) as (_, writer):
            await put(writer, 20 * MIB)
            await upstream.has_read(1)
            assert not upstream.cancelled.is_set()
        await upstream.cancelled.wait()


async def test_a_grpc_stream_is_answered_while_it_is_sent(socket_folder: Path) -> None:
    request = transcription_service_pb2.StreamTranscribeRequest
    async with (
        asyncio.timeout(60),
        audio(socket_folder) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        call = transcription_service_pb2_grpc.TranscriptionServiceStub(channel).StreamTranscribe()
        await call.write(request(config={"model": "m"}))
        assert (await call.read()).started.model == "m"
        for number in range(1, 41):  # 40 MB in total: no size limit ends the stream
            await call.write(request(audio=b"x" * 1_000_000))
            assert (await call.read()).partial.text == str(number * 1_000_000)
        await call.done_writing()
        assert (await call.read()).finished.tokens == 40_000_000


@pytest.mark.parametrize("path", [PATH, "/v1/audio/translations"])
async def test_rest_callers_get_an_error_without_an_audio_service(gateway: RunningGateway, path: str) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    reply = await send(gateway.port, "POST", path, headers, b"--b--\r\n")
    assert reply.status == 503
    assert reply.error["code"] == "service_unavailable"
    assert reply.error["message"].startswith("The audio service is not available")
    assert "retry-after" in reply.headers


async def test_without_one_grpc_callers_get_a_status(gateway: RunningGateway) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        call = transcription_service_pb2_grpc.TranscriptionServiceStub(channel).StreamTranscribe()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert "The audio service is not available" in (await call.details() or "")


async def test_unknown_audio_paths_are_invalid_urls(gateway: RunningGateway) -> None:
    reply = await send(gateway.port, "GET", PATH)
    assert (reply.status, reply.error["message"]) == (404, f"Invalid URL (GET {PATH})")
