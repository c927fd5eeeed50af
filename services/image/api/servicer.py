"""The gRPC servicer of allm.image.v1.ImageService."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from allm.image.v1 import image_service_pb2, image_service_pb2_grpc
from google.protobuf.message import Message

from services.image.api.messages import (
    TYPED,
    answer_fields,
    event_fields,
    read_edit,
    read_generate,
    read_variation,
)
from services.image.images import Event, Gallery, Images
from services.image.manager import ImageModels
from services.image.parameters import ImageRequest
from services.rest.openai.body import called
from services.rpc.call import Call, typed
from services.rpc.shares import Shares


class ImageServicer(image_service_pb2_grpc.ImageServiceServicer):
    """The typed image API."""

    def __init__(self, models: ImageModels, images: Images, limit_bytes: int, room: Shares) -> None:
        """`limit_bytes`: the largest accepted file; `room`: the memory for the files of all requests."""
        self._models = models
        self._images = images
        self._limit_bytes = limit_bytes
        self._room = room

    @typed(operation="image_generation")
    async def GenerateImage(  # noqa: N802
        self, request: image_service_pb2.GenerateImageRequest, call: Call
    ) -> image_service_pb2.GenerateImageResponse:
        """Generates pictures from a prompt."""
        gallery = await self._whole(read_generate(request), call)
        return image_service_pb2.GenerateImageResponse(**answer_fields(gallery))

    @typed(operation="image_generation")
    async def StreamGenerateImage(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: image_service_pb2.StreamGenerateImageRequest, call: Call
    ) -> None:
        """Generates pictures from a prompt; streams previews and progress."""
        await self._stream(read_generate(request), call, image_service_pb2.StreamGenerateImageResponse)

    @typed(operation="image_edit")
    async def EditImage(  # noqa: N802
        self, request: image_service_pb2.EditImageRequest, call: Call
    ) -> image_service_pb2.EditImageResponse:
        """Edits an image, everywhere or under a mask."""
        gallery = await self._whole(read_edit(request, self._limit_bytes), call)
        return image_service_pb2.EditImageResponse(**answer_fields(gallery))

    @typed(operation="image_edit")
    async def StreamEditImage(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: image_service_pb2.StreamEditImageRequest, call: Call
    ) -> None:
        """Edits an image; streams previews and progress."""
        wanted = read_edit(request, self._limit_bytes)
        await self._stream(wanted, call, image_service_pb2.StreamEditImageResponse)

    @typed(operation="image_variation")
    async def CreateVariation(  # noqa: N802
        self, request: image_service_pb2.CreateVariationRequest, call: Call
    ) -> image_service_pb2.CreateVariationResponse:
        """Creates variations of an image."""
        gallery = await self._whole(read_variation(request, self._limit_bytes), call)
        return image_service_pb2.CreateVariationResponse(**answer_fields(gallery))

    @typed(operation="image_variation")
    async def StreamCreateVariation(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: image_service_pb2.StreamCreateVariationRequest, call: Call
    ) -> None:
        """Creates variations of an image; streams previews and progress."""
        wanted = read_variation(request, self._limit_bytes)
        await self._stream(wanted, call, image_service_pb2.StreamCreateVariationResponse)

    async def _whole(self, wanted: ImageRequest, call: Call) -> Gallery:
        gallery = Gallery()
        async with self._events(wanted, call) as events:
            await gallery.gather(events)
        call.facts["usage"] = gallery.facts
        return gallery

    async def _stream(self, wanted: ImageRequest, call: Call, answer: Callable[..., Message]) -> None:
        """Sends each event as it arrives; `answer` is the stream's message class."""
        gallery = Gallery()
        async with self._events(wanted, call) as events:
            async for event in events:
                gallery.add(event)
                await call.send(answer(**event_fields(event, gallery)))
        call.facts["usage"] = gallery.facts

    @asynccontextmanager
    async def _events(self, wanted: ImageRequest, call: Call) -> AsyncIterator[AsyncIterator[Event]]:
        """Runs the request for the duration of the block. Raises Overloaded if its files do not fit in memory."""
        with self._room.open(call.client) as share, called(TYPED):
            share.take(len(wanted.image) + len(wanted.mask))
            stored = await self._models.find(wanted.model)
            call.model = stored.id
            async with self._images.generate(stored, wanted, call.client) as events:
                yield events
