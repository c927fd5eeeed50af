"""A pool of decoders as a service uses it, with helpers for tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from services.audio.sound.decoders import Sound, SoundDecoders
from services.audio.sound.source import RawSound, Upload
from services.errors import InvalidRequest


@dataclass
class Pool:
    """Decoders and the folder of their uploads."""

    decoders: SoundDecoders
    folder: Path

    @contextlib.asynccontextmanager
    async def open(self, data: bytes, raw: RawSound | None = None, name: str = "") -> AsyncIterator[Sound]:
        """Uploads a file and opens it."""
        with Upload(self.folder, 1 << 30) as upload:
            upload.write(data)
            async with self.decoders.open(upload, raw, name) as sound:
                yield sound

    async def decode(self, data: bytes, raw: RawSound | None = None, name: str = "") -> bytes:
        """Returns all audio of a file."""
        async with self.open(data, raw, name) as sound:
            return await read_all(sound)

    async def refusal(self, data: bytes, raw: RawSound | None = None, name: str = "") -> str:
        """Returns the error message for a file that is refused."""
        try:
            await self.decode(data, raw, name)
        except InvalidRequest as error:
            assert error.param == "file"
            return error.message
        raise AssertionError("the file was decoded")


async def read_all(sound: Sound) -> bytes:
    """Reads the audio to its end; checks that no piece is longer than a few seconds."""
    pieces = []
    while piece := await sound.read():
        assert len(piece) <= 4 * 32000
        pieces.append(piece)
    assert await sound.read() == b""
    return b"".join(pieces)


def decoder_processes() -> list[psutil.Process]:
    """Lists this process's running decoder processes; a stack on the same machine may have others."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "services.audio.sound" in child.cmdline():
                found.append(child)
    return found
