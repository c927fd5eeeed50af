"""Images through the gateway: prompts like any JSON body, uploads like audio, and files by name."""

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
import pytest
from allm.image.v1 import image_service_pb2, image_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.envoy_process import NOWHERE, RunningGateway, gateway_settings, running_gateway
from tests.gateway.image_upstream import PICTURE, ImageUpstream
from tests.gateway.upstream import error_details, event
from tests.gateway.wire import posting, send

pytestmark = pytest.mark.asyncio(loop_scope="session")
GENERATIONS = "/v1/images/generations"
UPLOADS = {"/v1/images/edits": "CreateImageEdit", "/v1/images/variations": "CreateImageVariation"}
FORM = {"content-type": "multipart/form-data; boundary=b"}
MIB = 1024 * 1024
NO_TEXT = ("127.0.0.1:1",)
numbers = itertools.count()

uploads = pytest.mark.parametrize("path", UPLOADS)


@dataclass
class Images:
    """A gateway whose body limit is 1 MiB, and the scripted image replicas behind it."""

    gateway: RunningGateway
    upstreams: list[ImageUpstream]

    @property
    def port(self) -> int:
        return self.gateway.port


@asynccontextmanager
async def images(socket_folder: Path, count: int = 1) -> AsyncIterator[Images]:
    folder = socket_folder / f"image-{next(numbers)}"
    folder.mkdir()
    async with AsyncExitStack() as stack:
        upstreams = [ImageUpstream() for _ in range(count)]
        addresses = tuple(f"unix:{folder / f'image-{number}.sock'}" for number in range(count))
        for upstream, address in zip(upstreams, addresses, strict=True):
            await upstream.start(address)
            stack.push_async_callback(upstream.stop)
        settings = gateway_settings(max_body_bytes=MIB)
        running = running_gateway(folder, NO_TEXT, NOWHERE, settings, image=addresses)
        yield Images(await stack.enter_async_context(running), upstreams)


def refusing(reads: int = 1) -> Any:
    """Returns a script that reads at least `reads` bytes, then refuses as a replica without the model does."""

    async def refuse(messages: AsyncIterator[HttpBody], context: Any) -> AsyncIterator[HttpBody]:
        read = 0
        async for each in messages:
            read += len(each.data)
            if read >= reads:
                break
        details = error_details("not ready", "server_error", "model_not_ready")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not ready", (details, ("x-http-status", "503")))
        yield HttpBody()

    return refuse


async def test_a_prompt_reaches_the_service_byte_for_byte_and_within_the_body_limit(socket_folder: Path) -> None:
    body = b'{"prompt": "a",  "unknown": 9007199254740993}'
    async with asyncio.timeout(60), images(socket_folder) as running:
        reply = await send(running.port, "POST", GENERATIONS, {"content-type": "application/json"}, body)
        assert (reply.status, reply.body) == (200, f"CreateImage {len(body)}".encode())
        assert running.upstreams[0].bodies == [body]
        large = await send(running.port, "POST", GENERATIONS, body=b"x" * (MIB + 1))
        assert (large.status, large.error["code"]) == (413, "request_too_large")
        assert len(running.upstreams[0].bodies) == 1


async def test_previews_leave_one_by_one(socket_folder: Path) -> None:
    first_was_read = asyncio.Event()

    async def preview(messages: AsyncIterator[HttpBody], context: Any) -> AsyncIterator[HttpBody]:
        yield event("partial")
        await first_was_read.wait()
        yield event("completed")

    async with asyncio.timeout(60), images(socket_folder) as running:
        running.upstreams[0].script = preview
        async with posting(running.port, GENERATIONS, b"{}") as reader:
            await reader.readuntil(b'data: "partial"\n\n')
            first_was_read.set()
            await reader.readuntil(b'data: "completed"\n\n')


@uploads
async def test_uploads_reach_the_service_as_they_come_and_have_its_own_limit(socket_folder: Path, path: str) -> None:
    size = 30 * MIB
    async with asyncio.timeout(60), images(socket_folder) as running:
        (upstream,) = running.upstreams
        last = asyncio.Event()

        def pieces() -> Any:
            """Ends only once the service has received most of the body; socket buffers hold the rest."""
            yield from [b"x" * MIB] * 29
            assert asyncio.run_coroutine_threadsafe(upstream.has_read(14 * MIB), loop).result(30) is None
            loop.call_soon_threadsafe(last.set)
            yield b"x" * MIB

        loop = asyncio.get_running_loop()
        reply = await send(running.port, "POST", path, FORM, pieces())
        assert last.is_set()
        assert (reply.status, reply.body) == (200, f"{UPLOADS[path]} {size}".encode())


@uploads
async def test_a_refused_upload_reaches_the_second_replica_whole(socket_folder: Path, path: str) -> None:
    body = b"".join(b"%08d" % at for at in range(MIB * 3 // 4 // 8))
    async with asyncio.timeout(60), images(socket_folder, 2) as running:
        running.upstreams[0].script = refusing()
        replies = [await send(running.port, "POST", path, FORM, body) for _ in range(10)]
        assert {(reply.status, reply.body) for reply in replies} == {(200, f"{UPLOADS[path]} {len(body)}".encode())}
        assert [bytes(each) for each in running.upstreams[1].bodies] == [body] * 10
        lines = map(json.loads, await running.gateway.logged(replies[-1].headers["x-request-id"]))
        assert 2 in [line.get("attempts") for line in lines], "the balancer knew which one to ask"


async def test_a_long_upload_is_not_kept_for_another_replica(socket_folder: Path) -> None:
    path = "/v1/images/edits"
    async with asyncio.timeout(60), images(socket_folder, 2) as running:
        for upstream in running.upstreams:
            upstream.script = refusing(reads=8 * MIB)
        reply = await send(running.port, "POST", path, FORM, b"x" * 8 * MIB)
        assert (reply.status, reply.error["message"]) == (503, "not ready")
        lines = map(json.loads, await running.gateway.logged(reply.headers["x-request-id"]))
        assert [line["attempts"] for line in lines if line.get("path") == path] == [1]


async def test_a_picture_comes_under_its_name(socket_folder: Path) -> None:
    async with asyncio.timeout(60), images(socket_folder) as running:
        reply = await send(running.port, "GET", "/v1/images/files/a-b_c.png")
        assert (reply.status, reply.headers["content-type"], reply.body) == (200, "image/png", PICTURE)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert reply.headers["cache-control"] == "private"
        await send(running.port, "GET", "/v1/images/files/..%2Fx.png?name=other")
        assert running.upstreams[0].names == ["a-b_c.png", "../x.png"], "the service judges names, a query has none"


async def test_grpc_callers_see_every_step(socket_folder: Path) -> None:
    async with (
        asyncio.timeout(60),
        images(socket_folder) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        request = image_service_pb2.StreamGenerateImageRequest(config={"model": "m"}, prompt="x")
        started, *steps = [
            each async for each in image_service_pb2_grpc.ImageServiceStub(channel).StreamGenerateImage(request)
        ]
        assert started.started.model == "m"
        assert [each.progress.step for each in steps] == [1, 2, 3]


async def test_a_grpc_edit_is_one_message_within_the_body_limit_and_streams_steps(
    socket_folder: Path,
) -> None:
    image = b"".join(b"%08d" % at for at in range(MIB * 3 // 4 // 8))
    async with (
        asyncio.timeout(60),
        images(socket_folder) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        (upstream,) = running.upstreams
        stub = image_service_pb2_grpc.ImageServiceStub(channel)
        request = image_service_pb2.StreamEditImageRequest(config={"model": "m"}, prompt="x", image=image)
        call = stub.StreamEditImage(request)
        assert (await call.read()).started.model == "m"
        for step in range(1, 4):
            upstream.steps.release()
            assert (await call.read()).progress.step == step
        assert upstream.bodies == [image]
        large = stub.StreamEditImage(image_service_pb2.StreamEditImageRequest(image=bytes(MIB)))
        assert await large.code() is grpc.StatusCode.UNKNOWN, "Envoy has no other for what is too large"
        assert f"{MIB} bytes, the limit set by ALLM_MAX_BODY_BYTES" in (await large.details() or "")
        assert len(upstream.bodies) == 1


@pytest.mark.parametrize("path", [GENERATIONS, *UPLOADS])
async def test_rest_callers_get_an_error_without_an_image_service(gateway: RunningGateway, path: str) -> None:
    reply = await send(gateway.port, "POST", path, FORM, b"--b--\r\n")
    assert (reply.status, reply.error["code"]) == (503, "service_unavailable")
    assert reply.error["message"].startswith("The image service is not available")
    assert "retry-after" in reply.headers


async def test_without_one_grpc_callers_get_a_status(gateway: RunningGateway) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        request = image_service_pb2.StreamGenerateImageRequest()
        call = image_service_pb2_grpc.ImageServiceStub(channel).StreamGenerateImage(request)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert "The image service is not available" in (await call.details() or "")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", GENERATIONS), ("POST", "/v1/images/files/a.png"), ("GET", "/v1/images/files/a/b.png")]
)
async def test_unknown_image_paths_are_invalid_urls(gateway: RunningGateway, method: str, path: str) -> None:
    reply = await send(gateway.port, method, path)
    assert (reply.status, reply.error["message"]) == (404, f"Invalid URL ({method} {path})")
