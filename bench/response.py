"""One HTTP/1.1 response that carries server-sent events, parsed as its bytes arrive, split anywhere.

The parser is hand-written because the client shares the machine with the server under test: a general HTTP client
spends several times the CPU per event. It is independent of chat completions.
"""

from __future__ import annotations

from enum import Enum, auto


class ResponseError(Exception):
    """The bytes are not an HTTP/1.1 response that the parser supports."""


class _Part(Enum):
    HEAD = auto()
    SIZE = auto()  # the line with the length of a chunk
    CHUNK = auto()  # a chunk's bytes and the line break after them
    TRAILER = auto()
    LENGTH = auto()  # a body of known length
    UNTIL_CLOSE = auto()
    COMPLETE = auto()


class Response:
    """An incremental parser of one response: takes bytes, returns the body's bytes, and detects the end."""

    __slots__ = ("_body", "_left", "_part", "_raw", "content_type", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        self.content_type = ""
        self.keep_alive = True
        self._part = _Part.HEAD
        self._raw = b""
        self._left = 0
        self._body: list[bytes] = []

    @property
    def complete(self) -> bool:
        return self._part is _Part.COMPLETE

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes from the connection; returns the body's bytes in them."""
        self._raw = self._raw + data if self._raw else data
        while self._step():
            pass
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return body

    def close(self) -> None:
        """Handles the end of the connection, which ends a body without a length."""
        if self._part is _Part.UNTIL_CLOSE:
            self._part = _Part.COMPLETE

    def _step(self) -> bool:
        """Parses one part of the response; returns False if bytes are missing."""
        if self._part is _Part.CHUNK:
            return self._chunk()
        if self._part is _Part.SIZE:
            return self._size()
        if self._part is _Part.HEAD:
            return self._head()
        if self._part is _Part.TRAILER:
            return self._trailer()
        if self._part is _Part.LENGTH:
            return self._known_length()
        if self._part is _Part.UNTIL_CLOSE and self._raw:
            self._body.append(self._raw)
            self._raw = b""
        return False

    def _line(self) -> bytes | None:
        line, found, rest = self._raw.partition(b"\r\n")
        if not found:
            return None
        self._raw = rest
        return line

    def _head(self) -> bool:
        head, found, rest = self._raw.partition(b"\r\n\r\n")
        if not found:
            return False
        self._raw = rest
        start, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = start.partition(" ")
        if version != "HTTP/1.1" or not status[:3].isdigit():
            raise ResponseError(f"not an HTTP/1.1 response: {start[:60]!r}")
        self.status = int(status[:3])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.content_type = headers.get("content-type", "")
        self.keep_alive = headers.get("connection", "").lower() != "close"
        if headers.get("transfer-encoding", "").lower() == "chunked":
            self._part = _Part.SIZE
        elif "content-length" in headers:
            self._left = int(headers["content-length"])
            self._part = _Part.LENGTH
        else:
            self._part = _Part.UNTIL_CLOSE
        return True

    def _size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        try:
            self._left = int(line.split(b";", 1)[0], 16)
        except ValueError:
            raise ResponseError(f"not a chunk size: {line[:40]!r}") from None
        self._part = _Part.CHUNK if self._left else _Part.TRAILER
        return True

    def _chunk(self) -> bool:
        raw, left = self._raw, self._left
        if len(raw) >= left + 2:
            self._body.append(raw[:left])
            self._raw = raw[left + 2 :]
            self._part = _Part.SIZE
            return True
        if 0 < len(raw) <= left:  # passes on a part of a chunk, because it may hold a whole event
            self._body.append(raw)
            self._raw = b""
            self._left = left - len(raw)
        return False

    def _trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if not line:
            self._part = _Part.COMPLETE
        return True

    def _known_length(self) -> bool:
        taken = self._raw[: self._left]
        if taken:
            self._body.append(taken)
            self._raw = self._raw[len(taken) :]
            self._left -= len(taken)
        if not self._left:
            self._part = _Part.COMPLETE
        return False


class EventStream:
    """A parser that splits a body into the data of its server-sent events; drops comments and other fields."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, body: bytes) -> list[bytes]:
        """Takes the next bytes of the body; returns the data of the events that they complete."""
        *lines, self._rest = (self._rest + body).split(b"\n")
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif not line.strip() and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events
