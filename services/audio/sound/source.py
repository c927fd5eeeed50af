"""Sources of sound: an uploaded file or a live feed; and the format of raw sound.

Both limit the bytes that they hold. This module knows no container format.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from services.errors import Internal, InvalidRequest, RequestTooLarge

Encoding = Literal["s16le", "f32le"]
MAX_CHANNELS = 64
MIN_RATE, MAX_RATE = 1_000, 768_000  # hertz
SUFFIX = ".upload"
PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RawSound:
    """Interleaved samples without a header. Raises InvalidRequest for impossible values."""

    sample_rate: int
    channels: int = 1
    encoding: Encoding = "s16le"

    def __post_init__(self) -> None:
        if not MIN_RATE <= self.sample_rate <= MAX_RATE:
            message = f"sample_rate must be {MIN_RATE} to {MAX_RATE} Hz, not {self.sample_rate}"
            raise InvalidRequest(message, param="sample_rate")
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise InvalidRequest(f"channels must be 1 to {MAX_CHANNELS}, not {self.channels}", param="channels")
        if self.encoding not in get_args(Encoding):
            message = f"encoding must be one of {', '.join(get_args(Encoding))}, not {self.encoding!r}"
            raise InvalidRequest(message, param="encoding")

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.channels * (2 if self.encoding == "s16le" else 4)

    @property
    def plain(self) -> bool:
        """True if this is the models' own format, so that nothing has to be decoded."""
        return self == RawSound(16_000)


class Upload:
    """A caller's file: written incrementally, then read from any position. A context that removes it.

    It lies in a folder that only the service's user may read, and is locked as long as its process lives, so that
    `remove_abandoned` in another process can distinguish it from the leftovers of a crash.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.size = 0  # bytes so far
        try:
            make_private(folder)
            self.path, self._file = _locked_file(folder)
        except OSError as error:
            raise Internal(f"an upload cannot be stored: {error.strerror}") from error

    def write(self, data: bytes) -> None:
        """Appends bytes. Raises RequestTooLarge over the limit, and Internal if the disk takes no more."""
        if self.size + len(data) > self._limit:
            message = f"the file is over the limit of {self._limit} bytes (ALLM_MAX_AUDIO_BYTES)"
            raise RequestTooLarge(message, param="file")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            raise Internal(f"the upload cannot be stored: {error.strerror}") from error
        self.size += len(data)

    def read(self, count: int, offset: int) -> bytes:
        """Returns at most `count` bytes from `offset` on."""
        return os.pread(self._file, count, offset)

    def unlink(self) -> None:
        """Removes the file's name; open descriptors stay readable. Safe to repeat."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Removes the file. Safe to repeat."""
        self.unlink()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LiveFeed:
    """Bytes that are decoded as they arrive. Writers wait while `limit` or more of them are unread."""

    def __init__(self, limit: int = 256 * 1024) -> None:
        self._limit = limit
        self._waiting = bytearray()
        self._ended = False
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, data: bytes) -> None:
        """Adds bytes; waits while the limit is reached. Bytes after `end` or `close` are dropped."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._over or len(self._waiting) < self._limit)
            if not self._over and data:
                self._waiting += data
                self._changed.notify_all()

    async def end(self) -> None:
        """Marks the end of the feed; its remaining bytes are still read."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def close(self) -> None:
        """Ends reading: callers that wait in `put` continue, and the remaining bytes are dropped."""
        async with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    async def take(self, count: int) -> bytes:
        """Returns at least one byte and at most `count`; nothing at the end. Waits for bytes."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._over or bool(self._waiting))
            data = bytes(self._waiting[:count])
            del self._waiting[:count]
            self._changed.notify_all()
            return data

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields all bytes to the end, as they arrive."""
        while data := await self.take(PIECE_BYTES):
            yield data

    @property
    def _over(self) -> bool:
        return self._ended or self._closed


SoundSource = Upload | LiveFeed


def make_private(folder: Path) -> None:
    """Creates a folder that only this user may read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def remove_abandoned(folder: Path) -> int:
    """Removes the uploads of dead processes and returns their number; living processes hold a lock on theirs."""
    removed = 0
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if entry.suffix != SUFFIX:
            continue
        with contextlib.suppress(OSError):  # another process removes it, or uses it
            file = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                entry.unlink()
                removed += 1
            finally:
                os.close(file)
    return removed


def _locked_file(folder: Path) -> tuple[Path, int]:
    """Creates a file, open and locked; repeats if another process removed it as abandoned before it was locked."""
    while True:
        path = folder / f"{secrets.token_hex(16)}{SUFFIX}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return path, file
        os.close(file)
