"""Reads multipart forms with pictures into memory, with limits on each file, on their total, on open forms,
and on the memory of all requests together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from google.api import httpbody_pb2

from services.errors import InvalidRequest, Timeout, Unsupported
from services.image.api import limits
from services.rest.openai.multipart import FilePart, Form, Sink, read_form
from services.rpc.call import Call
from services.rpc.shares import Share, Shares

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
        self._places = Shares(at_once, holders="requests with images", unit="places", retry_seconds=RETRY_SECONDS)

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
        if not part.file_name and not part.content_type:
            return None  # a field
        name = NAMES.get(part.name)
        if name is None:
            if part.name == "markup":
                raise Unsupported("'markup' is not supported by this server.", param="markup")
            return _Nowhere()
        if name in self.files:
            if name == IMAGE:
                raise Unsupported("Several images are not supported: only one can be edited.", param=IMAGE)
            raise InvalidRequest(f"'{name}' is given twice; one file is allowed.", param=name)
        self.files[name] = bytearray()
        return _Memory(self.files[name], self.limit_bytes, name, self.share)


class _Nowhere:
    """A sink that discards an unknown file."""

    def write(self, _: bytes, /) -> None:
        """Discards the bytes."""


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
