"""Multipart forms cut into arbitrary pieces, and their fields as the audio and image facades read them."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import AsyncIterator, Sequence

from google.api import httpbody_pb2

from services.audio.api.openai import read_transcription, read_translation
from services.errors import AllmError, RequestTooLarge
from services.image.api.openai import read_edit, read_variation
from services.rest.openai.multipart import FilePart, Form, FormFields, read_form
from tests.fuzz.driven import driven
from tests.fuzz.fuzz_target import FuzzTarget

FILE_BYTES = 8 * 1024
WORDS = (
    *(b"--fuzz\r\n", b"--fuzz--\r\n", b"\r\n--fuzz", b"--fuzz \t \r\n", b"Content-Disposition: form-data; name="),
    *(b'filename="a"', b"filename*=utf-8''%ff", b"Content-Type: audio/wav\r\n", b"\r\n\r\n", b"name[]", b"name[key]"),
    *(b'"model"', b'"file"', b'"temperature"', b'"chunking_strategy"', b'{"type": "server_vad"}', b'"stream"', b"true"),
)
# A field's name, a line end, its value: the input of the field readers.
FIELD_WORDS = (
    *(b"model\n", b"temperature\n", b"timestamp_granularities[]\nword\n", b"chunking_strategy\n", b"include[]\n"),
    *(b"response_format\nverbose_json\n", b"n\n", b"size\n", b"seed\n", b"steps\n", b"strength\n", b"stream\ntrue\n"),
    *(b"chunking_strategy[threshold]\n", b"beam_size\n", b"vad_filter\n", b"output_compression\n", b"background\n"),
)


class _File:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes, /) -> None:
        if len(self.data) + len(data) > FILE_BYTES:
            raise RequestTooLarge("the file is too large", param="file")
        self.data += data


def _form(case: bytes) -> None:
    """Parses content type, line end and body: every way to cut the body must give the same result."""
    kind, _, body = case.partition(b"\n")
    content_type = kind.decode(errors="replace")
    chance = random.Random(zlib.crc32(case))  # noqa: S311 (the same cuts each time)
    whole = _result(content_type, [body])
    for size in (1, 2, 3, 7, 61):
        _same(whole, _result(content_type, [body[at : at + size] for at in range(0, len(body), size)]), size)
    for _ in range(3):
        cuts = sorted(chance.choices(range(len(body) + 1), k=chance.randint(1, 8)))
        edges = [0, *cuts, len(body)]
        _same(whole, _result(content_type, [body[a:b] for a, b in itertools.pairwise(edges)]), cuts)
    if isinstance(whole, AllmError):
        raise whole


Result = tuple[Form, list[bytes]] | AllmError


def _same(one: Result, other: Result, how: object) -> None:
    if isinstance(one, AllmError):
        assert isinstance(other, AllmError), f"refused as a whole ({one.message}), taken in pieces: {how}"
        assert one.message == other.message, how
        return
    assert one == other, (how, other)


def _result(content_type: str, pieces: Sequence[bytes]) -> Result:
    files: list[_File] = []

    def open_file(part: FilePart) -> _File | None:
        if part.name != "file" and not part.file_name:
            return None
        files.append(_File())
        return files[-1]

    try:
        form = driven(read_form(_messages(content_type, pieces), open_file))
    except AllmError as error:
        return error
    return form, [file.data for file in files]


async def _messages(content_type: str, pieces: Sequence[bytes]) -> AsyncIterator[httpbody_pb2.HttpBody]:
    for at, piece in enumerate(pieces or [b""]):
        yield httpbody_pb2.HttpBody(content_type="" if at else content_type, data=piece)


def _fields(case: bytes) -> None:
    """Parses lines: a name, its value, and so on. Every reader gets the same fields."""
    lines = case.decode(errors="replace").split("\n")
    fields = list(zip(lines[::2], lines[1::2], strict=False))
    refusals: list[AllmError] = []
    for read in (
        lambda: read_transcription(FormFields(fields)),
        lambda: read_translation(FormFields(fields)),
        lambda: read_edit(FormFields(fields), b"x", b""),
        lambda: read_variation(FormFields(fields), b"x", b"y"),
    ):
        try:
            read()
        except AllmError as error:
            assert len(error.message.encode()) <= 1100
            refusals.append(error)


FORM_TARGETS = (
    FuzzTarget("form", _form, words=WORDS, longest=4096, cases=250),
    FuzzTarget("form-fields", _fields, words=FIELD_WORDS, longest=8192, cases=500),
)
