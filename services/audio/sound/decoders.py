"""The pool of decoder processes, for uploads and live feeds.

A process holds one file while its sound is read, which is mostly waiting for the reader. A process that did not end a
file well never gets another caller's.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.audio.sound.decoding.messages import FromDecoder, Open, Pcm
from services.audio.sound.sound import PARAM, DecodedSound, PlainSound, Sound, too_long
from services.audio.sound.source import LiveFeed, RawSound, SoundSource, Upload, make_private, remove_abandoned
from services.errors import Internal, InvalidRequest, Overloaded
from services.sandbox.pool import ProcessPool
from services.sandbox.process import ConfinedProcess, ConfinedProgram

PROGRAM = ConfinedProgram(
    module="services.audio.sound.decoding",
    messages=FromDecoder,
    name="sound decoder",
    kind="the sound decoder",
    most_orders=200,
)
SPARE = 2  # idle processes, so that no short request waits for a start
LIVE_SHARE = 0.75  # most of the decoders: a live feed holds one for as long as its speaker likes, files do not

log = logging.getLogger(__name__)


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
            busy=lambda waiting: f"{decoders} files are being decoded and {waiting} wait: try again later",
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
            raise Internal(f"the folder of uploads cannot be used: {error.strerror}") from error
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
            raise InvalidRequest("the file is empty: it has no bytes", param=PARAM)
        if raw:
            seconds = source.size / raw.frame_bytes / raw.sample_rate
            if seconds > self._max_seconds:
                raise too_long(self._max_seconds, seconds)

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
