"""The REST facade in OpenAI's format: POST /v1/images/generations, /edits, /variations, and GET /v1/images/files.

Forms with pictures are read into memory, with limits on each file, on their total, on open forms, and on the memory of
all requests together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from allm.openai.v1 import image_service_pb2, image_service_pb2_grpc
from google.api import httpbody_pb2

from services.errors import InvalidRequest, Timeout, Unsupported
from services.image.api import limits
from services.image.api.messages import REST
from services.image.api.openai import (
    Answer,
    Asked,
    completed_event,
    partial_event,
    read_edit,
    read_generation,
    read_variation,
    response_object,
)
from services.image.images import Event, Gallery, Images, PictureFile
from services.image.manager import ImageModels
from services.image.parameters import ImageRequest
from services.pictures.image_files import ImageFiles
from services.rest.openai import sse
from services.rest.openai.body import called, json_body, send_body, undeclared
from services.rest.openai.multipart import DISCARD, FilePart, Form, FormFields, Sink, discarding_rest, read_form
from services.rest.openai.sse import facade
from services.rpc.call import Call
from services.rpc.shares import Share, Shares

FILE_SECONDS = 600.0  # time limit for sending a picture

Messages = AsyncIterator[httpbody_pb2.HttpBody]
ReadForm = Callable[[FormFields, bytes, bytes], tuple[Answer, ImageRequest]]


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
        read = read_generation(request)
        call.ignore_unknown(list(undeclared(request, Asked)))
        await self._answer(*read, call)

    @facade(operation="image_edit")
    async def CreateImageEdit(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: Messages, call: Call
    ) -> None:
        """Edits an image, everywhere or under a mask."""
        await self._read(request, read_edit, call)

    @facade(operation="image_variation")
    async def CreateImageVariation(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: Messages, call: Call
    ) -> None:
        """Creates variations of an image."""
        await self._read(request, read_variation, call)

    @facade(FILE_SECONDS)
    async def GetImageFile(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: image_service_pb2.GetImageFileRequest, call: Call
    ) -> None:
        """Returns a picture that an answer linked by its URL."""
        kind, data = await self._files.read(request.name)
        await send_body(call, kind, data)

    async def _read(self, messages: Messages, read: ReadForm, call: Call) -> None:
        async with discarding_rest(messages):
            with self._uploads.open(call) as upload:
                form = await upload.read(messages)
                fields = FormFields(form.fields)
                wanted = read(fields, upload.file(IMAGE), upload.file(MASK))
                call.ignore_unknown([*fields.unread(), *form.discarded])
                await self._answer(*wanted, call)

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
            urls, owner = answer.response_format == "url", call.identity.subject
            kept = [await self._files.keep(each.data, each.kind, owner) for each in gallery.pictures] if urls else []
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


UPLOAD_SECONDS = 600.0  # time limit for receiving a form
AT_ONCE = 64  # requests with open forms
IMAGE, MASK = "image", "mask"
NAMES = {"image": IMAGE, "image[]": IMAGE, "mask": MASK}
RETRY_SECONDS = 5.0  # an edit takes some seconds, then its file is freed


class ImageUploads:
    """Admits forms with files, within limits of size and number."""

    def __init__(self, limit_bytes: int, room: Shares, at_once: int = AT_ONCE) -> None:
        """`limit_bytes`: the largest file; `room`: the memory for the files of all requests."""
        self._limit_bytes = limit_bytes
        self._room = room
        self._places = Shares(at_once, holders="requests with images", unit="slots", retry_seconds=RETRY_SECONDS)

    @contextmanager
    def open(self, caller: Call) -> Iterator[Uploaded]:
        """Opens a request's upload; leaving the block frees its memory. Raises Overloaded if too many are open."""
        limit = caller.identity.bytes_in_flight
        with self._places.hold(caller.client, 1), self._room.open(caller.client, limit) as share:
            uploaded = Uploaded(self._limit_bytes, share)
            try:
                yield uploaded
            finally:
                uploaded.clear()


def upload_room(most_bytes: int) -> Shares:
    """Returns the memory for input files that both wire formats share."""
    return Shares(
        most_bytes, holders="uploads in progress", variable="ALLM_IMAGE_UPLOAD_BYTES", retry_seconds=RETRY_SECONDS
    )


@dataclass(slots=True)
class Uploaded:
    """The files of a form."""

    limit_bytes: int
    share: Share
    files: dict[str, bytearray] = field(default_factory=dict)  # name -> bytes

    async def read(self, messages: AsyncIterator[httpbody_pb2.HttpBody]) -> Form:
        """Reads a form with its files; the parts may come in any order.

        Raises:
            InvalidRequest: not a form, no image, or an empty file.
            Unsupported: several images.
            RequestTooLarge: a file over the limit.
            RateLimited: the files of the caller's key together are too large.
            Overloaded: the files of all requests together are too large, and the caller's key has its share.
            Timeout: the form took too long to arrive.
        """
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                form = await read_form(messages, self._open_file)
        except TimeoutError as error:
            raise Timeout(f"the form took longer than {UPLOAD_SECONDS:g} seconds to arrive") from error
        for name, _ in form.fields:
            if name in NAMES:
                raise InvalidRequest(f"'{NAMES[name]}' must be a file, with a file name.", param=NAMES[name])
        if IMAGE not in self.files:
            raise InvalidRequest(f"Missing required parameter: '{IMAGE}'.", param=IMAGE)
        for name, data in self.files.items():
            if not data:
                raise InvalidRequest(f"'{name}' is empty.", param=name)
        return form

    def file(self, name: str) -> bytes:
        """Removes and returns a file's bytes; empty if there is no such file."""
        return bytes(self.files.pop(name, b""))

    def clear(self) -> None:
        """Frees the files now: the error of a cancelled request keeps them until the next collection of garbage."""
        for data in self.files.values():
            data.clear()
        self.files.clear()

    def _open_file(self, part: FilePart) -> Sink | None:
        name = NAMES.get(part.name)
        if not part.file_name and not (name and part.content_type):  # some clients send a content type with each field
            return None
        if name is None:
            if part.name == "markup":
                raise Unsupported("'markup' is not supported by this server.", param="markup")
            return DISCARD
        if name in self.files:
            if name == IMAGE:
                raise Unsupported("Several images are not supported: only one can be edited.", param=IMAGE)
            raise InvalidRequest(f"'{name}' is given twice; one file is allowed.", param=name)
        self.files[name] = bytearray()
        return _Memory(self.files[name], self.limit_bytes, name, self.share)


class _Memory:
    """A sink that collects a file in memory."""

    def __init__(self, data: bytearray, limit: int, name: str, share: Share) -> None:
        self._data = data
        self._limit = limit
        self._name = name
        self._share = share

    def write(self, data: bytes, /) -> None:
        """Takes the next bytes. Raises RequestTooLarge, RateLimited and Overloaded."""
        if len(self._data) + len(data) > self._limit:
            raise limits.too_large(self._name, self._limit)
        self._share.take(len(data))
        self._data += data
