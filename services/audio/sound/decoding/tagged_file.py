"""A file on disk, without the ID3 tags before its sound.

A tag may hold megabytes of pictures, more than a demuxer scans before it gives up on the file. Nothing in it is of use
here, so it is not parsed.
"""

from __future__ import annotations

import io
import os

HEADER_BYTES = 10  # of an ID3v2 tag, https://id3.org/id3v2.4.0-structure section 3.1
FOOTER = 0x10  # flag of the header
MAX_TAGS = 64  # one after the other; a file of nothing but tags would take a long time to scan


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
