"""The input of a decoder: a live feed as a file that can be read once, each read asking the service for more; or a file
on disk, without the ID3 tags before its sound.

A tag may hold megabytes of pictures, more than a demuxer scans before it gives up on the file. Nothing in it is of use
here, so it is not parsed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable

from services.audio.sound.messages import Chunk, Hungry, ToDecoder
from services.sandbox.child import Refusal
from services.worker.channel import BlockingChannel, ChannelClosed

CHUNK_BYTES = 64 * 1024
SILENT_BYTES = 8 * 1024 * 1024  # most bytes without sound; then the feed is refused
HEADER_BYTES = 10  # of an ID3v2 tag, https://id3.org/id3v2.4.0-structure section 3.1
FOOTER = 0x10  # flag of the header
MAX_TAGS = 64  # one after the other; a file of nothing but tags would take a long time to scan


class Feed:
    """A readable file for a demuxer. `before_waiting` is called when all received bytes have been read."""

    def __init__(self, channel: BlockingChannel[ToDecoder], before_waiting: Callable[[], None]) -> None:
        self._channel = channel
        self._before_waiting = before_waiting
        self._ahead = b""  # received and not read yet
        self._ended = False
        self._silent = 0
        self.received = 0  # bytes

    def read(self, count: int) -> bytes:
        """Returns at least one byte and at most `count`; nothing at the end. Waits for the caller's next bytes."""
        if not self._ahead:
            self._ahead = self._next()
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        return data

    def peek(self, count: int) -> bytes:
        """Returns the next `count` bytes and keeps them for later reads; fewer at the end."""
        while len(self._ahead) < count and (data := self._next()):
            self._ahead += data
        return self._ahead[:count]

    def skip(self, count: int) -> None:
        """Skips `count` bytes."""
        while count and (data := self.read(min(count, CHUNK_BYTES))):
            count -= len(data)
            self._silent = 0

    def close(self) -> None:
        """Does nothing: a feed holds no resource."""

    def heard(self) -> None:
        """Records that the bytes so far became sound."""
        self._silent = 0

    def _next(self) -> bytes:
        if self._ended:
            return b""
        if self._silent > SILENT_BYTES:
            raise Refusal(f"{self._silent} consecutive bytes contain no sound")
        self._before_waiting()
        self._channel.send(Hungry(CHUNK_BYTES))
        chunk = self._channel.receive()
        if not isinstance(chunk, Chunk):
            raise ChannelClosed(f"a {type(chunk).__name__} came instead of a Chunk")
        self._ended = not chunk.data
        self._silent += len(chunk.data)
        self.received += len(chunk.data)
        return chunk.data


class TaggedFile:
    """A readable file for a demuxer: the file after its tags."""

    def __init__(self, path: str) -> None:
        self._file = io.FileIO(path)
        self._start = 0
        for _ in range(MAX_TAGS):
            self._start += tag_bytes(self._header())
        self._file.seek(self._start)

    def read(self, count: int) -> bytes:
        """Returns at most `count` bytes; nothing at the end."""
        return self._file.read(count) or b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a position and returns it; a position before the start is an error of the demuxer's."""
        start = self._start if whence == os.SEEK_SET else 0
        return self._file.seek(start + offset, whence) - self._start

    def tell(self) -> int:
        """Returns the position of the next read."""
        return self._file.tell() - self._start

    def peek(self, count: int) -> bytes:
        """Returns the first `count` bytes; fewer if the file is shorter."""
        return os.pread(self._file.fileno(), count, self._start)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _header(self) -> bytes:
        return os.pread(self._file.fileno(), HEADER_BYTES, self._start)


def tag_bytes(header: bytes) -> int:
    """Returns the length of the ID3v2 tag that starts with these bytes; 0 if there is none."""
    if len(header) < HEADER_BYTES or header[:3] != b"ID3" or max(header[6:10]) > 0x7F:
        return 0
    length = 0
    for byte in header[6:10]:  # seven bits each
        length = length << 7 | byte
    return HEADER_BYTES + length + (HEADER_BYTES if header[5] & FOOTER else 0)
