"""The pool of decoder processes, for uploads and live feeds, and the decoded sound, which is read incrementally.

A process holds one file while its sound is read, which is mostly waiting for the reader. A process that did not end a
file well never gets another caller's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.audio.sound.messages import (
    BYTES_PER_SAMPLE,
    SAMPLE_RATE,
    DecodedSamples,
    Ended,
    FeedChunk,
    FileOpened,
    FromDecoder,
    Hungry,
    Open,
    Pcm,
    too_long,
)
from services.audio.sound.source import (
    PIECE_BYTES,
    LiveFeed,
    RawSound,
    SoundSource,
    Upload,
    make_private,
    remove_abandoned,
)
from services.errors import Internal, InvalidRequest, Overloaded
from services.sandbox.child import OrderRefused
from services.sandbox.pool import ProcessPool
from services.sandbox.process import ConfinedProcess, ConfinedProgram
from services.worker.process import WorkerDied

PROGRAM = ConfinedProgram(
    module="services.audio.sound",
    messages=FromDecoder,
    name="sound decoder",
    kind="the sound decoder",
    most_orders=200,
)
SPARE = 2  # idle processes, so that no short request waits for a start
LIVE_SHARE = 0.75  # most of the decoders: a live feed holds one for as long as its speaker likes, files do not
PARAM = "file"
MAX_NAME = 100  # characters of a file's name in an error

log = logging.getLogger(__name__)


class PlainSound:
    """Raw sound in the models' own format: nothing is decoded, only its length is checked."""

    def __init__(self, source: SoundSource, max_seconds: float) -> None:
        self._source = source
        self._max_seconds = max_seconds
        self._rest = b""
        self._bytes = 0  # read so far

    async def read(self) -> bytes:
        """Returns the next sound, at most a few seconds; empty at the end. Raises InvalidRequest for a faulty file."""
        while piece := await self._piece():
            self._bytes += len(piece)
            if self._bytes > self._max_seconds * SAMPLE_RATE * BYTES_PER_SAMPLE:
                raise InvalidRequest(too_long(self._max_seconds), param=PARAM)
            data = self._rest + piece
            whole = len(data) // BYTES_PER_SAMPLE * BYTES_PER_SAMPLE
            self._rest = data[whole:]
            if whole:
                return data[:whole]
        if self._rest:
            message = f"the audio ends within a sample, after {len(self._rest)} of {BYTES_PER_SAMPLE} bytes"
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
        """Returns the next sound, at most a few seconds; empty at the end. Raises InvalidRequest for a faulty file."""
        if self._failure:
            raise self._failure
        while not self._ended:
            message = await self._receive()
            if isinstance(message, DecodedSamples):
                return message.samples
            if isinstance(message, Hungry) and isinstance(self._source, LiveFeed):
                self._decoder.send(FeedChunk(await self._source.take(message.count)))
            elif isinstance(message, FileOpened) and isinstance(self._source, Upload):
                self._source.unlink()
            elif isinstance(message, Ended):
                self._ended = True
                self._decoder.finish()  # the only good end: after any other the process gets no further file
            elif isinstance(message, OrderRefused):
                raise self._failed(message.message)
            else:
                raise self._failed("the file crashed the decoder")
        return b""

    async def _receive(self) -> object:
        try:
            async with asyncio.timeout(self._stall_seconds):
                return await self._decoder.receive()
        except TimeoutError:
            log.warning("decoder %d made no progress and was killed", self._decoder.pid)
            raise self._failed(
                f"the decoder produced no audio for {self._stall_seconds:g} seconds (ALLM_STALL_SECONDS)"
            ) from None
        except WorkerDied as died:
            log.warning("%s", died)
            raise self._failed("the file crashed the decoder: it is corrupt or malicious") from None

    def _failed(self, message: str) -> InvalidRequest:
        self._failure = InvalidRequest(f"{self._name}: {message}" if self._name else message, param=PARAM)
        return self._failure


Sound = PlainSound | DecodedSound  # of one file or feed: 16 kHz, one channel, int16 little-endian


class SoundDecoders:
    """The decoders of uploads and live feeds."""

    def __init__(
        self, *, decoders: int, folder: Path, max_seconds: float, queue: int, stall_seconds: float, spare: int = SPARE
    ) -> None:
        """`decoders` files are open at the same time at most, and `queue` more may wait; uploads lie in `folder`."""
        self.pool: ProcessPool[FromDecoder] = ProcessPool(
            lambda: ConfinedProcess.start(PROGRAM),
            most=decoders,
            queue=queue,
            seconds=stall_seconds,
            busy=lambda waiting: (
                f"{decoders} files are being decoded (ALLM_AUDIO_DECODERS) and {waiting} wait (ALLM_AUDIO_QUEUE)"
            ),
            spare=min(spare, decoders),
        )
        self._most_live = max(1, int(decoders * LIVE_SHARE))
        self._live = 0
        self._folder = folder
        self._max_seconds = max_seconds
        self._stall_seconds = stall_seconds

    async def start(self) -> None:
        """Removes a crash's leftovers from the folder and starts the spare processes.

        Raises:
            Unsupported: sound cannot be decoded here; the message names the missing part.
            Internal: no process starts, or the folder cannot be used.
        """
        try:
            make_private(self._folder)
            if removed := remove_abandoned(self._folder):
                log.warning("%d uploads of a service that ended early were removed", removed)
        except OSError as error:
            raise Internal(f"the upload folder cannot be used: {error.strerror}") from error
        await self.pool.start()

    async def close(self) -> None:
        """Ends all idle processes; a process with a file ends with its context."""
        await self.pool.close()

    @property
    def processes(self) -> list[int]:
        """Process ids of the decoders that wait for a file."""
        return self.pool.processes

    @asynccontextmanager
    async def open(self, source: SoundSource, raw: RawSound | None = None, name_hint: str = "") -> AsyncIterator[Sound]:
        """Yields the sound of a source; leaving the block stops decoding and closes a live feed, but not an upload.

        Args:
            source: a whole upload, or a live feed.
            raw: the format of its samples, if it has no header.
            name_hint: the caller's name of the file. It appears only in errors: the content decides the format.

        Raises:
            InvalidRequest: the upload is empty, or raw and too long.
            Overloaded: the limits of decoded and of waiting files are reached, or the limit of live feeds.
            Internal: no decoder stays alive until it begins with the file.
        """
        self._check(source, raw)
        try:
            if raw and raw.plain:
                yield PlainSound(source, self._max_seconds)
                return
            async with (
                self._live_share(source),
                self.pool.slot(),
                self.pool.process(self._order(source, raw)) as decoder,
            ):
                yield DecodedSound(decoder, source, self._stall_seconds, name_hint)
        finally:
            if isinstance(source, LiveFeed):
                await source.close()

    def _check(self, source: SoundSource, raw: RawSound | None) -> None:
        if isinstance(source, LiveFeed):
            return
        if not source.size:
            raise InvalidRequest("the file is empty", param=PARAM)
        if raw:
            seconds = source.size / raw.frame_bytes / raw.sample_rate
            if seconds > self._max_seconds:
                raise InvalidRequest(too_long(self._max_seconds, seconds), param=PARAM)

    def _order(self, source: SoundSource, raw: RawSound | None) -> Open:
        path = str(source.path) if isinstance(source, Upload) else ""
        pcm = Pcm(raw.sample_rate, raw.channels, raw.encoding) if raw else None
        return Open(path, pcm, self._max_seconds)

    @asynccontextmanager
    async def _live_share(self, source: SoundSource) -> AsyncIterator[None]:
        """Limits live feeds, so that decoders remain for files."""
        if not isinstance(source, LiveFeed):
            yield
            return
        if self._live >= self._most_live:
            message = f"{self._live} live feeds are being decoded or wait: no more are accepted (ALLM_AUDIO_DECODERS); "
            raise Overloaded(message + "16-bit samples at 16 kHz in one channel need no decoder")
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1
