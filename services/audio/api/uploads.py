"""Uploaded files: read from a form, spooled to disk, limited in size and number, and removed with their request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from google.api import httpbody_pb2

from services.audio.sound.source import Upload
from services.errors import InvalidRequest, Timeout
from services.rest.openai.multipart import DISCARD, FilePart, Form, Sink, read_form
from services.rpc.shares import Shares

UPLOAD_SECONDS = 3600.0  # limit for the arrival of a file
AT_ONCE = 512  # requests with an uploaded file, running and waiting
FILE = "file"


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Limits the time in which a file arrives. Raises Timeout when it is over."""
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            yield
    except TimeoutError as error:
        raise Timeout(f"the file took longer than {UPLOAD_SECONDS:g} seconds to arrive") from error


class Uploads:
    """The uploaded files of the current requests."""

    def __init__(self, folder: Path, limit_bytes: int, at_once: int = AT_ONCE) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._places = Shares(at_once, holders="audio files in progress or waiting", unit="slots")

    @contextmanager
    def open(self, client: str) -> Iterator[Upload]:
        """Opens an empty file for writing; leaving the block removes it. Raises Overloaded if too many are open."""
        with self._places.hold(client, 1), Upload(self._folder, self._limit_bytes) as upload:
            yield upload


async def read_upload(messages: AsyncIterator[httpbody_pb2.HttpBody], upload: Upload) -> Form:
    """Reads a form whose part `file` is the audio; the parts may come in any order.

    Raises:
        InvalidRequest: the body is not a form, or has no file, two files or an empty file.
        RequestTooLarge: the file exceeds the upload limit.
        Timeout: the file did not arrive in time.
    """
    taken = False

    def open_file(part: FilePart) -> Sink | None:
        nonlocal taken
        if part.name != FILE:
            return DISCARD if part.file_name else None
        if taken:
            raise InvalidRequest(f"'{FILE}' is given twice; one file is allowed.", param=FILE)
        taken = True
        return upload

    async with in_time():
        form = await read_form(messages, open_file)
    if not taken:
        raise InvalidRequest(f"Missing required parameter: '{FILE}'.", param=FILE)
    if not upload.size:
        raise InvalidRequest(f"'{FILE}' is empty.", param=FILE)
    return form
