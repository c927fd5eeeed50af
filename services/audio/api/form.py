"""The form of an audio request: the file goes into an upload, the fields are returned."""

from __future__ import annotations

from collections.abc import AsyncIterator

from google.api import httpbody_pb2

from services.audio.api.uploads import in_time
from services.audio.sound.source import Upload
from services.errors import InvalidRequest
from services.rest.openai.multipart import FilePart, Form, Sink, read_form

FILE = "file"


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
            return None
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
