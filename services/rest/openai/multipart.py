"""Multipart forms, read while they come: short fields are kept, files pass on to where the caller wants them.

The gateway passes a form on in google.api.HttpBody messages cut anywhere, of which the first alone has a content type.
What a form may hold is bounded whatever comes; how long a file may be is its sink's to say. Only services that take
files import this: the parser comes with their extras.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from google.api import httpbody_pb2
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from services.errors import AllmError, InvalidRequest

KIND = "multipart/form-data"
MAX_PARTS = 128
MAX_NAME_BYTES = 256
MAX_FIELD_BYTES = 1024 * 1024  # some parameters of OpenAI's hold a short file as a data URL
MAX_FIELDS_BYTES = 4 * MAX_FIELD_BYTES
MAX_FILE_NAME = 255
SLICE_BYTES = 16 * 1024  # parsed at once; between two slices other requests get their turn
# The parser is fast as long as a form has few boundaries, with hardly any space behind: there it goes byte by byte.
MAX_BOUNDARIES = 2 * MAX_PARTS
MAX_PADDING = SLICE_BYTES  # spaces behind one
# What is still taken of a request that has failed, so that its caller comes to read the answer.
DISCARD_BYTES = 512 * 1024 * 1024
DISCARD_SECONDS = 60.0
PLAIN_ENCODINGS = frozenset({"", "7bit", "8bit", "binary"})

# What is wrong with a form is told its caller. The parser would log it as well, and quote the form.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class Sink(Protocol):
    """Where a file goes."""

    def write(self, data: bytes, /) -> object:
        """Takes the next bytes; raises an AllmError for a file that is too large."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """What a part says of itself before its content comes."""

    name: str  # of the parameter
    file_name: str  # as the caller calls the file: a hint, and never a path to open; empty: none
    content_type: str


# Says where a part goes; None: it is a field.
OpenFile = Callable[[FilePart], Sink | None]


@dataclass(slots=True)
class Form:
    """A form that has come wholly."""

    fields: list[tuple[str, str]] = field(default_factory=list)  # name and value, in order, repeated ones too
    files: list[FilePart] = field(default_factory=list)


@asynccontextmanager
async def heard_out(messages: AsyncIterator[httpbody_pb2.HttpBody]) -> AsyncIterator[None]:
    """Before an error leaves the block, the rest of the request is taken and thrown away, within limits.

    Over HTTP/1.1 the gateway closes the connection of a caller that is answered while it sends; most callers then see
    the connection break, send everything again, and never the answer.
    """
    try:
        yield
    except AllmError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                taken = 0
                async for message in messages:
                    taken += len(message.data)
                    if taken > DISCARD_BYTES:
                        break
        raise


async def read_form(messages: AsyncIterator[httpbody_pb2.HttpBody], open_file: OpenFile) -> Form:
    """Reads a form to its end.

    Raises:
        InvalidRequest: no multipart form, one that is malformed or cut off, or more in it than is allowed.
    """
    reader: _FormReader | None = None
    async for message in messages:
        reader = reader or _FormReader(_boundary(message.content_type), open_file)
        for start in range(0, len(message.data), SLICE_BYTES):
            reader.write(message.data[start : start + SLICE_BYTES])
            await asyncio.sleep(0)
    if reader is None:
        raise InvalidRequest(f"the request has no body; {KIND} is expected")
    return reader.end()


def _boundary(content_type: str) -> bytes:
    try:
        kind, options = parse_options_header(content_type)
    except UnicodeEncodeError:
        kind, options = b"", {}
    if kind != KIND.encode():
        given = content_type.partition(";")[0].strip()[:100] or "nothing"
        raise InvalidRequest(f"the request's content type must be {KIND}, not {given!r}")
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise InvalidRequest(f"the request's content type {KIND} lacks its boundary")
    return boundary


class _FormReader:
    """Follows a form through the parser's callbacks."""

    def __init__(self, boundary: bytes, open_file: OpenFile) -> None:
        self._form = Form()
        self._open_file = open_file
        self._parts = 0
        self._fields_bytes = 0
        self._ended = False
        self._delimiter = b"\r\n--" + boundary
        self._boundaries = 0
        self._tail = b""  # of the last slice: a boundary may be cut
        self._padding = 0  # bytes of space behind a boundary in which the last slice ended
        self._begin()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._open,
                    "on_part_data": self._data,
                    "on_part_end": self._close,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InvalidRequest(f"the multipart form's boundary cannot be used: {error}") from error

    def write(self, data: bytes) -> None:
        """Takes the next bytes of the form, at most a slice."""
        seen = self._tail + data
        self._boundaries += seen.count(self._delimiter)
        if self._boundaries > MAX_BOUNDARIES:
            raise self._malformed()
        self._tail = seen[1 - len(self._delimiter) :]
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise self._malformed() from error
        space = len(data) - len(data.rstrip(b" \t")) if self._parser.state == MultipartState.BOUNDARY_PADDING else 0
        self._padding = space + self._padding if space == len(data) else space
        if self._padding > MAX_PADDING:
            raise self._malformed()

    def end(self) -> Form:
        """The whole form. Raises InvalidRequest where its end is missing."""
        if not self._ended:
            raise InvalidRequest("the multipart form is cut off: its closing boundary is missing")
        return self._form

    def _malformed(self) -> InvalidRequest:
        return InvalidRequest(f"the multipart form is malformed after {self._parts} parts")

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._header: tuple[bytes, bytes] = (b"", b"")
        self._name = ""
        self._sink: Sink | None = None
        self._value = bytearray()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0] + data[start:end], b"")

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0], self._header[1] + data[start:end])

    def _header_end(self) -> None:
        name, value = self._header
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        self._header = (b"", b"")

    def _open(self) -> None:
        """The part's headers are there."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidRequest(f"the multipart form has more than {MAX_PARTS} parts")
        kind, options = parse_options_header(self._headers.get("content-disposition", ""))
        name = options.get(b"name", b"")
        if kind != b"form-data" or not name:
            raise InvalidRequest(f"part {self._parts} of the multipart form has no name")
        if len(name) > MAX_NAME_BYTES:
            raise InvalidRequest(f"part {self._parts} of the multipart form has a name of over {MAX_NAME_BYTES} bytes")
        self._name = name.decode(errors="replace")
        encoding = self._headers.get("content-transfer-encoding", "").strip().lower()
        if encoding not in PLAIN_ENCODINGS:
            message = f"'{self._name}' is sent in the transfer encoding {encoding[:40]!r}; only binary is supported."
            raise InvalidRequest(message, param=self._name)
        file_name = options.get(b"filename", b"").decode(errors="replace")[:MAX_FILE_NAME]
        part = FilePart(self._name, file_name, self._headers.get("content-type", "").strip())
        self._sink = self._open_file(part)
        if self._sink is not None:
            self._form.files.append(part)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._sink is not None:
            self._sink.write(data[start:end])
            return
        self._fields_bytes += end - start
        if len(self._value) + end - start > MAX_FIELD_BYTES:
            raise InvalidRequest(f"'{self._name}' is longer than {MAX_FIELD_BYTES} bytes.", param=self._name)
        if self._fields_bytes > MAX_FIELDS_BYTES:
            raise InvalidRequest(f"the fields of the multipart form are longer than {MAX_FIELDS_BYTES} bytes together")
        self._value += data[start:end]

    def _close(self) -> None:
        """The part is over."""
        if self._sink is not None:
            return
        try:
            value = self._value.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"'{self._name}' is not valid UTF-8.", param=self._name) from error
        self._form.fields.append((self._name, value))

    def _end(self) -> None:
        self._ended = True
