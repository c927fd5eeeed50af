"""A scripted stand-in for the image service: real gRPC, with a record of received requests."""

# ruff: noqa: N802 - gRPC names the methods

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from allm.image.v1 import image_service_pb2, image_service_pb2_grpc
from allm.openai.v1 import image_service_pb2_grpc as openai_image_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.upstream import OPTIONS, Context, serve

# The script gets the single message of a generation, or the message stream of the other RPCs.
ImageScript = Callable[[Any, Context], AsyncIterator[HttpBody]]
PICTURE = b"\x89PNG and what belongs to it"


@dataclass
class ImageUpstream:
    """The image service of one replica. Without a script it reads the whole request and returns its size."""

    script: ImageScript | None = None
    bodies: list[bytearray] = field(default_factory=list)  # of every request, filled incrementally
    names: list[str] = field(default_factory=list)  # of the requested images
    steps: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))  # steps that an edit may report
    server: grpc.aio.Server | None = None

    async def start(self, address: str) -> None:
        """Serves on `address` and reports itself healthy."""
        self.server = grpc.aio.server(options=OPTIONS)
        openai_image_service_pb2_grpc.add_ImagesServiceServicer_to_server(_ImagesFacade(self), self.server)
        image_service_pb2_grpc.add_ImageServiceServicer_to_server(_Image(self), self.server)
        await serve(self.server, address)

    async def stop(self) -> None:
        if self.server:
            await self.server.stop(0)

    async def has_read(self, count: int) -> None:
        """Waits until `count` bytes of the last request have arrived."""
        while not self.bodies or len(self.bodies[-1]) < count:  # noqa: ASYNC110 - they are counted where they arrive
            await asyncio.sleep(0.02)

    async def answer(self, rpc: str, messages: AsyncIterator[HttpBody], context: Context) -> AsyncIterator[HttpBody]:
        """Yields the script's messages, or the RPC's name and the number of bytes received."""
        if self.script:
            async for message in self.script(messages, context):
                yield message
            return
        self.bodies.append(body := bytearray())
        async for message in messages:
            body += message.data
        yield HttpBody(content_type="text/plain", data=f"{rpc} {len(body)}".encode())


@dataclass
class _ImagesFacade(openai_image_service_pb2_grpc.ImagesServiceServicer):
    upstream: ImageUpstream

    async def CreateImage(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        async def only() -> AsyncIterator[HttpBody]:
            yield request

        async for message in self.upstream.answer("CreateImage", only(), context):
            yield message

    async def CreateImageEdit(self, request: AsyncIterator[HttpBody], context: Context) -> AsyncIterator[HttpBody]:
        async for message in self.upstream.answer("CreateImageEdit", request, context):
            yield message

    async def CreateImageVariation(self, request: AsyncIterator[HttpBody], context: Context) -> AsyncIterator[HttpBody]:
        async for message in self.upstream.answer("CreateImageVariation", request, context):
            yield message

    async def GetImageFile(self, request: Any, context: Context) -> AsyncIterator[HttpBody]:
        self.upstream.names.append(request.name)
        for start in range(0, len(PICTURE), 10):
            yield HttpBody(content_type="image/png", data=PICTURE[start : start + 10])


@dataclass
class _Image(image_service_pb2_grpc.ImageServiceServicer):
    """Reports each step after the previous one was sent; a step of an edit also waits for the test to release it."""

    upstream: ImageUpstream

    async def StreamGenerateImage(
        self, request: image_service_pb2.StreamGenerateImageRequest, context: Context
    ) -> AsyncIterator[image_service_pb2.StreamGenerateImageResponse]:
        reply = image_service_pb2.StreamGenerateImageResponse
        yield reply(started={"model": request.config.model})
        for step in range(1, 4):
            yield reply(progress={"step": step})

    async def StreamEditImage(
        self, request: image_service_pb2.StreamEditImageRequest, context: Context
    ) -> AsyncIterator[image_service_pb2.StreamEditImageResponse]:
        self.upstream.bodies.append(bytearray(request.image))
        reply = image_service_pb2.StreamEditImageResponse
        yield reply(started={"model": request.config.model})
        for step in range(1, 4):
            await self.upstream.steps.acquire()
            yield reply(progress={"step": step})
