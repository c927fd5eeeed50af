"""The pool of decoder processes: a few wait warm, more start on demand, up to a limit.

A process holds one file while its sound is read, which is mostly waiting for the reader. A process that did not end a
file well never gets another caller's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.audio.sound.decoder import Decoder
from services.audio.sound.decoding.messages import Open, Pcm
from services.audio.sound.sound import PARAM, DecodedSound, PlainSound, Sound, too_long
from services.audio.sound.source import LiveFeed, RawSound, SoundSource, Upload, make_private, remove_abandoned
from services.errors import AllmError, Internal, InvalidRequest, Overloaded

SPARE = 2  # idle processes, so that no short request waits for a start
IDLE_SECONDS = 60.0  # after which idle processes beyond the spare ones end
LIVE_SHARE = 0.75  # most of the decoders: a live feed holds one for as long as its speaker likes, files do not

log = logging.getLogger(__name__)


class SoundDecoders:
    """The decoders of uploads and live feeds."""

    def __init__(
        self, *, decoders: int, folder: Path, max_seconds: float, queue: int, stall_seconds: float, spare: int = SPARE
    ) -> None:
        """`decoders` files are open at the same time at most, and `queue` more may wait; uploads lie in `folder`."""
        self._places = asyncio.Semaphore(decoders)
        self._most = decoders
        self._most_live = max(1, int(decoders * LIVE_SHARE))
        self._live = 0
        self._queue = queue
        self._waiting = 0
        self._folder = folder
        self._max_seconds = max_seconds
        self._stall_seconds = stall_seconds
        self._spare = min(spare, decoders)
        self._idle: list[Decoder] = []
        self._starting: asyncio.Task[None] | None = None  # starts a spare process
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

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
        self._idle += await asyncio.gather(*(Decoder.start() for _ in range(self._spare)))

    async def close(self) -> None:
        """Ends all idle processes; a process with a file ends with its context."""
        self._closed = True
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(decoder.close() for decoder in idle))

    @property
    def processes(self) -> list[int]:
        """Process ids of the decoders that wait for a file."""
        return [decoder.pid for decoder in self._idle]

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
        """
        self._check(source, raw)
        try:
            if raw and raw.plain:
                yield PlainSound(source, self._max_seconds)
                return
            async with self._live_share(source), self._place():
                decoder = await self._decoder(self._order(source, raw))
                try:
                    yield DecodedSound(decoder, source, self._stall_seconds, name_hint)
                finally:
                    await self._give_back(decoder)
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
            message = f"{self._live} live feeds are being decoded: no more are taken (ALLM_AUDIO_DECODERS); "
            raise Overloaded(message + "16-bit samples at 16 kHz in one channel need no decoder")
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        if self._places.locked() and self._waiting >= self._queue:
            raise Overloaded(f"{self._most} files are being decoded and {self._waiting} wait: try again later")
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()
            self._replenish()

    async def _decoder(self, order: Open) -> Decoder:
        """Returns a process that has begun with the file; skips one that died while idle."""
        while True:
            if not self._idle and self._starting:
                await asyncio.wait([self._starting])  # it is ready sooner than a new one
            decoder = self._idle.pop() if self._idle else await Decoder.start()
            self._replenish()
            try:
                async with asyncio.timeout(self._stall_seconds):
                    begun = await decoder.begin(order)
            except TimeoutError:
                begun = False
            except BaseException:
                await decoder.close()
                raise
            if begun:
                return decoder
            log.warning("decoder %d had ended before it was given a file", decoder.pid)
            await decoder.close()

    async def _give_back(self, decoder: Decoder) -> None:
        if decoder.reusable and not self._closed:
            decoder.idle_since = time.monotonic()
            self._idle.append(decoder)
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._trim)
            return
        await decoder.close()

    def _replenish(self) -> None:
        """Starts a process for the next file if none is idle."""
        if not (self._idle or self._starting or self._closed or self._places.locked()):
            self._starting = self._spawn(self._start_spare())

    async def _start_spare(self) -> None:
        try:
            self._idle.append(await Decoder.start())
        except AllmError:
            log.warning("no decoder waits: the next file starts one, and its caller is told if that fails")
        finally:
            self._starting = None

    def _trim(self) -> None:
        """Ends idle processes beyond the spare ones; those unused longest end first."""
        now = time.monotonic()
        while len(self._idle) > self._spare:
            early = self._idle[0].idle_since + IDLE_SECONDS - now
            if early > 0:  # the loop's clock lags behind, or this decoder was used since
                asyncio.get_running_loop().call_later(early, self._trim)
                return
            self._spawn(self._idle.pop(0).close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
