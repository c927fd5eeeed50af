"""A fake image core with scripted pictures, behind both wire formats on a real gRPC server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import grpc
from allm.image.v1 import image_service_pb2_grpc
from allm.openai.v1 import image_service_pb2_grpc as openai_image_service_pb2_grpc

from services.errors import ModelNotFound
from services.image.api.facade import ImagesFacade, ImageUploads, upload_room
from services.image.api.servicer import ImageServicer
from services.image.engine.messages import Finished, Parameters, Progress
from services.image.images import Event, PictureFile, Started
from services.image.parameters import ImageRequest
from services.pictures.image_files import ImageFiles

MODEL = "shapes-scripted"
LIMIT_BYTES = 100_000
PUBLIC_URL = "https://ai.example.org"
PARAMETERS = Parameters(width=64, height=32, steps=4, guidance=5.5, scheduler="ddim")


def content(index: int, number: int | None = None) -> bytes:
    """Returns the content of a fake file."""
    return f"picture {index}, preview {number}".encode()


def picture_file(request: ImageRequest, index: int, number: int | None = None) -> PictureFile:
    """Returns a fake picture."""
    return PictureFile(
        index=index,
        partial=number,
        seed=7 + index,
        kind=request.output.kind,
        width=64,
        height=32,
        data=content(index, number),
    )


def scripted_events(request: ImageRequest) -> list[Event]:
    """Returns the events that the core sends for a request: the last of several pictures comes first."""
    progress = [Progress(1, step, 4) for step in range(1, 5)] if request.progress else []
    pictures = list(reversed(range(request.count)))
    partials = [picture_file(request, index, number) for number in range(request.partials) for index in pictures]
    done = [picture_file(request, index) for index in pictures]
    return [Started(MODEL, PARAMETERS, 7, 9), *progress, *partials, *done, Finished(1, 0.25, 4 * request.count)]


@dataclass
class ScriptedImages:
    """Records requests and sends the scripted events."""

    events: Callable[[ImageRequest], Sequence[Event]] = scripted_events
    between: Callable[[Event], Awaitable[None]] | None = None  # called before each event; may raise
    requests: list[ImageRequest] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # set when a request has ended in any way

    async def find(self, name: str) -> SimpleNamespace:
        """Returns the only model."""
        if name != MODEL:
            raise ModelNotFound(f"The model `{name}` does not exist.")
        return SimpleNamespace(id=MODEL)

    @asynccontextmanager
    async def generate(
        self, stored: SimpleNamespace, request: ImageRequest, client: str
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Yields the scripted events."""
        self.requests.append(request)
        self.clients.append(client)
        try:
            yield self._scripted(request)
        finally:
            self.left.set()

    async def _scripted(self, request: ImageRequest) -> AsyncIterator[Event]:
        for event in self.events(request):
            if self.between:
                await self.between(event)
            yield event


@asynccontextmanager
async def served(
    core: ScriptedImages, folder: Path, at_once: int = 8, room_bytes: int = 8 * LIMIT_BYTES
) -> AsyncIterator[grpc.aio.Channel]:
    """Serves both services over the core and yields a channel to them."""
    room = upload_room(room_bytes)
    server = grpc.aio.server()
    files = ImageFiles(folder, LIMIT_BYTES, PUBLIC_URL)
    await files.start()
    facade = ImagesFacade(core, core, files, ImageUploads(LIMIT_BYTES, room, at_once))  # type: ignore[arg-type]
    openai_image_service_pb2_grpc.add_ImagesServiceServicer_to_server(facade, server)
    servicer = ImageServicer(core, core, LIMIT_BYTES, room)  # type: ignore[arg-type]
    image_service_pb2_grpc.add_ImageServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)
        await files.close()
