"""The REST facade in OpenAI's format: POST /v1/images/generations, /edits, /variations, and GET /v1/images/files."""

from __future__ import annotations

from collections.abc import AsyncIterator

from allm.openai.v1 import image_service_pb2, image_service_pb2_grpc
from google.api import httpbody_pb2

from services.image.api.form import IMAGE, MASK, ImageUploads
from services.image.api.messages import REST
from services.image.api.openai import (
    Answer,
    completed_event,
    partial_event,
    read_edit,
    read_generation,
    read_variation,
    response_object,
)
from services.image.image_files import ImageFiles
from services.image.images import Event, Gallery, Images, PictureFile
from services.image.manager import ImageModels
from services.image.parameters import ImageRequest
from services.rest.openai import sse
from services.rest.openai.body import called, json_body, send_body
from services.rest.openai.multipart import discarding_rest
from services.rest.openai.sse import facade
from services.rpc.call import Call

FILE_SECONDS = 600.0  # time limit for sending a picture

Messages = AsyncIterator[httpbody_pb2.HttpBody]


class ImagesFacade(image_service_pb2_grpc.ImagesServiceServicer):
    """The REST facade of the image service."""

    def __init__(self, models: ImageModels, images: Images, files: ImageFiles, uploads: ImageUploads) -> None:
        self._models = models
        self._images = images
        self._files = files
        self._uploads = uploads

    @facade(operation="image_generation")
    async def CreateImage(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Generates pictures from a prompt."""
        await self._answer(*read_generation(request), call)

    @facade(operation="image_edit")
    async def CreateImageEdit(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: Messages, call: Call
    ) -> None:
        """Edits an image, everywhere or under a mask."""
        async with discarding_rest(request):
            with self._uploads.open(call) as upload:
                form = await upload.read(request)
                await self._answer(*read_edit(form.fields, upload.file(IMAGE), upload.file(MASK)), call)

    @facade(operation="image_variation")
    async def CreateImageVariation(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: Messages, call: Call
    ) -> None:
        """Creates variations of an image."""
        async with discarding_rest(request):
            with self._uploads.open(call) as upload:
                form = await upload.read(request)
                await self._answer(*read_variation(form.fields, upload.file(IMAGE), upload.file(MASK)), call)

    @facade(FILE_SECONDS)
    async def GetImageFile(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: image_service_pb2.GetImageFileRequest, call: Call
    ) -> None:
        """Returns a picture that an answer linked by its URL."""
        kind, data = await self._files.read(request.name)
        await send_body(call, kind, data)

    async def _answer(self, answer: Answer, wanted: ImageRequest, call: Call) -> None:
        stored = await self._models.find(wanted.model)
        call.model = stored.id
        gallery = Gallery()
        with called(REST):
            async with self._images.generate(stored, wanted, call.client) as events:
                if answer.stream:
                    await _stream(events, gallery, answer, call)
                else:
                    await gallery.gather(events)
        if not answer.stream:
            urls = answer.response_format == "url"
            kept = [await self._files.keep(each.data, each.kind) for each in gallery.pictures] if urls else []
            body = json_body(response_object(gallery, answer, kept))
            await send_body(call, body.content_type, body.data)
        call.facts["usage"] = gallery.facts


async def _stream(events: AsyncIterator[Event], gallery: Gallery, answer: Answer, call: Call) -> None:
    """Sends previews as they arrive, and the pictures once the usage is known. An error before the first event sets the
    HTTP status.
    """
    async for event in events:
        gallery.add(event)
        if isinstance(event, PictureFile) and event.partial is not None:
            await send_body(call, sse.EVENT_STREAM, sse.event(*partial_event(event, answer)))
    for picture in gallery.pictures:
        await send_body(call, sse.EVENT_STREAM, sse.event(*completed_event(picture, gallery, answer)))
