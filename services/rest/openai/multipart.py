"""Multipart forms, parsed incrementally: short fields are kept, files go to the caller's sinks.

The gateway sends a form as google.api.HttpBody messages, cut anywhere; only the first has a content type. Limits bound
everything in a form but the length of a file, which its sink limits. Only services that take files import this module:
the parser comes with their extras.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
from google.api import httpbody_pb2
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from services.errors import AllmError, InvalidRequest

KIND = "multipart/form-data"
MAX_PARTS = 128
MAX_NAME_BYTES = 256
MAX_FIELD_BYTES = 1024 * 1024  # some of OpenAI's parameters contain a short file as a data URL
MAX_FIELDS_BYTES = 4 * MAX_FIELD_BYTES
MAX_FILE_NAME = 255
SLICE_BYTES = 16 * 1024  # parsed without a pause; other requests run between two slices
# The parser is slow, one byte at a time, at boundaries and the space behind them: limit both.
MAX_BOUNDARIES = 2 * MAX_PARTS
MAX_PADDING = SLICE_BYTES  # bytes of space behind a boundary
# Limits on the discarded rest of a failed request, which is read so that its caller reads the answer.
DISCARD_BYTES = 512 * 1024 * 1024
DISCARD_SECONDS = 60.0
PLAIN_ENCODINGS = frozenset({"", "7bit", "8bit", "binary"})

# The caller gets a form's errors. The parser would log them as well, and quote the form.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class Sink(Protocol):
    """The destination of a file."""

    def write(self, data: bytes, /) -> object:
        """Takes the next bytes; raises an AllmError for a file that is too large."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """The headers of a part, before its content."""

    name: str  # of the parameter
    file_name: str  # the caller's name for the file: a hint, never a path to open; empty: none
    content_type: str


class _Discard:
    def write(self, _: bytes, /) -> None:
        """Discards the bytes."""


DISCARD = _Discard()  # for files of unknown names
# Returns the destination of a part; None: it is a field.
OpenFile = Callable[[FilePart], Sink | None]


@dataclass(slots=True)
class Form:
    """A complete form."""

    fields: list[tuple[str, str]] = field(default_factory=list)  # name and value, in order, including repeated ones
    discarded: list[str] = field(default_factory=list)  # the names of the parts that were discarded


@asynccontextmanager
async def discarding_rest(messages: AsyncIterator[httpbody_pb2.HttpBody]) -> AsyncIterator[None]:
    """Reads and discards the rest of the request, within limits, before an AllmError leaves the block.

    Over HTTP/1.1 the gateway closes the connection of a caller that is answered while it sends; most callers then see
    a broken connection, send everything again, and never see the answer.
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
        InvalidRequest: the form is not multipart, malformed, cut off, or over a limit.
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
    """The state of a form, updated by the parser's callbacks."""

    def __init__(self, boundary: bytes, open_file: OpenFile) -> None:
        self._form = Form()
        self._open_file = open_file
        self._parts = 0
        self._fields_bytes = 0
        self._ended = False
        self._delimiter = b"\r\n--" + boundary
        self._boundaries = 0
        self._tail = b""  # end of the last slice: a boundary may be cut
        self._padding = 0  # bytes of space after the boundary with which the last slice ended
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
        """Parses the next bytes of the form, at most a slice."""
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
        """Returns the whole form. Raises InvalidRequest if its end is missing."""
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
        """Opens a part, once its headers are complete."""
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
        if self._sink is DISCARD:
            self._form.discarded.append(part.name)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._sink is not None:
            self._sink.write(data[start:end])
            return
        self._fields_bytes += end - start
        if len(self._value) + end - start > MAX_FIELD_BYTES:
            raise InvalidRequest(f"'{self._name}' is longer than {MAX_FIELD_BYTES} bytes.", param=self._name)
        if self._fields_bytes > MAX_FIELDS_BYTES:
            raise InvalidRequest(f"the fields of the multipart form are longer than {MAX_FIELDS_BYTES} bytes in all")
        self._value += data[start:end]

    def _close(self) -> None:
        """Ends a part."""
        if self._sink is not None:
            return
        try:
            value = self._value.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"'{self._name}' is not valid UTF-8.", param=self._name) from error
        self._form.fields.append((self._name, value))

    def _end(self) -> None:
        self._ended = True


T = TypeVar("T")

_NOTHING = ("", "null")
_SWITCH = {"true": True, "1": True, "false": False, "0": False}


class FormFields:
    """The fields of one form. An invalid value raises InvalidRequest, with `param`."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self._values.setdefault(name, []).append(value)
        self._read: set[str] = set()

    def unread(self) -> list[str]:
        """Returns the names of the fields that nobody has read, except empty and null ones."""
        return [
            name
            for name, values in self._values.items()
            if name not in self._read and any(value.strip() not in _NOTHING for value in values)
        ]

    def text(self, name: str) -> str:
        """Returns a text unchanged; "" if missing."""
        self._read.add(name)
        values = self._values.get(name, [])
        if len(values) > 1:
            raise InvalidRequest(f"'{name}' is given {len(values)} times; once is allowed.", param=name)
        return values[0] if values else ""

    def choice(self, name: str, allowed: Sequence[T], default: T) -> T:
        """Returns one of the allowed words."""
        value = self._given(name)
        if value is None:
            return default
        for word in allowed:
            if value == word:
                return word
        raise _not(name, value, f"one of {', '.join(map(str, allowed))}")

    def number(self, name: str) -> float | None:
        """Returns a finite number."""
        value = self._given(name)
        if value is None:
            return None
        try:
            number = math.nan if "_" in value else float(value)  # only Python accepts `1_0`
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise _not(name, value, "a number")
        return number

    def integer(self, name: str) -> int | None:
        """Returns a whole number; accepts `5.0`, which some clients send."""
        number = self.number(name)
        if number is None:
            return None
        if number != int(number) or abs(number) > 2**53:
            raise _not(name, self.text(name), "a whole number")
        return int(number)

    def switch(self, name: str) -> bool | None:
        """Returns True or False; None if missing."""
        value = self._given(name)
        if value is None:
            return None
        if value.lower() not in _SWITCH:
            raise _not(name, value, "'true' or 'false'")
        return _SWITCH[value.lower()]

    def array(self, name: str) -> list[str]:
        """Returns the elements of an array of texts; empty if missing."""
        keys = (name, f"{name}[]")
        self._read.update(keys)
        return [value for key in keys for value in self._values.get(key, []) if value not in _NOTHING]

    def members(self, name: str) -> dict[str, str] | str | None:
        """Returns an object's members as text; a plain text if one was sent instead; None if missing."""
        inside = {
            key[len(name) + 1 : -1]: self.text(key)
            for key in self._values
            if key.startswith(f"{name}[") and key.endswith("]")
        }
        value = self._given(name)
        if inside and value is not None:
            raise InvalidRequest(f"'{name}' is given as a whole and in parts.", param=name)
        if value is None or not value.lstrip().startswith("{"):
            return inside or value
        return _object(name, value)

    def _given(self, name: str) -> str | None:
        value = self.text(name).strip()
        return None if value in _NOTHING else value


def _object(name: str, text: str) -> dict[str, str]:
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not(name, text, "a JSON object") from error
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in found.items()
        if value is not None
    }


def _not(name: str, value: str, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"'{name}' must be {allowed}, not {value[:40]!r}.", param=name)
