"""Decoded sound, read incrementally, so that the length of a file does not matter."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from services.audio.sound.decoding.messages import (
    BYTES_PER_SAMPLE,
    SAMPLE_RATE,
    Chunk,
    Decoded,
    Ended,
    FromDecoder,
    Hungry,
    Opened,
)
from services.audio.sound.source import PIECE_BYTES, LiveFeed, SoundSource, Upload
from services.errors import InvalidRequest
from services.sandbox.messages import Refused
from services.sandbox.process import ConfinedProcess
from services.worker.process import WorkerDied

PARAM = "file"
MAX_NAME = 100  # characters of a file's name in an error

log = logging.getLogger(__name__)


class Sound(Protocol):
    """Sound of one file or feed: 16 kHz, one channel, int16 little-endian."""

    async def read(self) -> bytes:
        """Returns the next sound, at most a few seconds; empty at the end.

        Raises:
            InvalidRequest: the file is at fault; the message names the fault.
        """


class PlainSound:
    """Raw sound in the models' own format: nothing is decoded, only its length is checked."""

    def __init__(self, source: SoundSource, max_seconds: float) -> None:
        self._source = source
        self._max_seconds = max_seconds
        self._rest = b""
        self._bytes = 0  # read so far

    async def read(self) -> bytes:
        """See Sound."""
        while piece := await self._piece():
            self._bytes += len(piece)
            if self._bytes > self._max_seconds * SAMPLE_RATE * BYTES_PER_SAMPLE:
                raise too_long(self._max_seconds)
            data = self._rest + piece
            whole = len(data) // BYTES_PER_SAMPLE * BYTES_PER_SAMPLE
            self._rest = data[whole:]
            if whole:
                return data[:whole]
        if self._rest:
            message = f"the sound ends within a sample: {len(self._rest)} byte of {BYTES_PER_SAMPLE} is left over"
            raise InvalidRequest(message, param=PARAM)
        return b""

    async def _piece(self) -> bytes:
        if isinstance(self._source, Upload):
            return self._source.read(PIECE_BYTES, self._bytes)
        return await self._source.take(PIECE_BYTES)


class DecodedSound:
    """Sound from a decoder process, which works only a little ahead of the reader."""

    def __init__(
        self, decoder: ConfinedProcess[FromDecoder], source: SoundSource, stall_seconds: float, name: str = ""
    ) -> None:
        self._decoder = decoder
        self._name = "".join(each for each in name[:MAX_NAME] if each.isprintable())  # only for errors
        self._source = source
        self._stall_seconds = stall_seconds
        self._ended = False
        self._failure: InvalidRequest | None = None

    async def read(self) -> bytes:
        """See Sound."""
        if self._failure:
            raise self._failure
        while not self._ended:
            message = await self._receive()
            if isinstance(message, Decoded):
                return message.samples
            if isinstance(message, Hungry) and isinstance(self._source, LiveFeed):
                self._decoder.send(Chunk(await self._source.take(message.count)))
            elif isinstance(message, Opened) and isinstance(self._source, Upload):
                self._source.unlink()
            elif isinstance(message, Ended):
                self._ended = True
                self._decoder.finish()  # the only good end: after any other the process gets no further file
            elif isinstance(message, Refused):
                raise self._failed(message.message)
            else:
                raise self._failed("the file crashed the decoder")
        return b""

    async def _receive(self) -> object:
        try:
            async with asyncio.timeout(self._stall_seconds):
                return await self._decoder.receive()
        except TimeoutError:
            log.warning("decoder %d makes no progress and is killed", self._decoder.pid)
            raise self._failed(f"the decoder produced no sound for {self._stall_seconds:g} seconds") from None
        except WorkerDied as died:
            log.warning("%s", died)
            raise self._failed("the file crashed the decoder: it is corrupt or malicious") from None

    def _failed(self, message: str) -> InvalidRequest:
        self._failure = InvalidRequest(f"{self._name}: {message}" if self._name else message, param=PARAM)
        return self._failure


def too_long(max_seconds: float, seconds: float = 0.0) -> InvalidRequest:
    """Returns the error for sound over the limit; `seconds` is its length if that is known."""
    length = f"{seconds:.0f} seconds" if seconds > max_seconds else f"over {max_seconds:g} seconds"
    most = f"at most {max_seconds:g} seconds are accepted at once (ALLM_MAX_AUDIO_SECONDS)"
    return InvalidRequest(f"the sound is {length} long: {most}; split it", param=PARAM)
