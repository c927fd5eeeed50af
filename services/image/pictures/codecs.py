"""A pool of codec processes: idle ones are kept warm, more start on demand, and their number is limited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.errors import Overloaded, Timeout
from services.image.pictures.codec import Codec
from services.image.pictures.coding.messages import Decode, Decoded, Encode, Encoded, Refused
from services.sandbox.start import ConfinedGone

log = logging.getLogger(__name__)

TRIES = 3  # with processes that had died while idle


class Codecs:
    """Processes up to `most` files concurrently; `queue` more may wait."""

    def __init__(self, *, most: int, queue: int, max_pixels: int, seconds: float) -> None:
        """`seconds`: the time limit of a file, including the start of a process."""
        self._places = asyncio.Semaphore(most)
        self._most = most
        self._queue = queue
        self._waiting = 0
        self._max_pixels = max_pixels
        self._seconds = seconds
        self._idle: list[Codec] = []
        self._closed = False

    async def start(self) -> None:
        """Starts the first process. Raises Unsupported if pictures cannot be read here, and Internal."""
        self._idle.append(await Codec.start(self._max_pixels))

    async def close(self) -> None:
        """Ends all idle processes; busy ones end after their file."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(codec.close() for codec in idle))

    @property
    def processes(self) -> list[int]:
        """Process ids of the idle processes."""
        return [codec.pid for codec in self._idle]

    async def run(self, order: Decode | Encode) -> Decoded | Encoded | Refused:
        """Reads or writes a file.

        Raises:
            ConfinedGone: the file killed its process.
            Overloaded: all processes are busy and the queue is full.
            Timeout: the file took too long.
        """
        async with self._place():
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._run(order)
            except TimeoutError as error:
                raise Timeout(f"a picture took longer than {self._seconds:g} seconds to be read or written") from error

    async def _run(self, order: Decode | Encode) -> Decoded | Encoded | Refused:
        for last in (*(False,) * (TRIES - 1), True):
            codec = self._idle.pop() if self._idle else await Codec.start(self._max_pixels)
            try:
                return await codec.run(order)
            except ConfinedGone as gone:
                log.warning("picture codec %d ended", codec.pid, extra={"begun": gone.begun})
                if gone.begun or last:
                    raise
            finally:
                if codec.reusable and not self._closed:
                    self._idle.append(codec)
                else:
                    await codec.close()
        raise AssertionError("the last try has raised")

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        if self._places.locked() and self._waiting >= self._queue:
            raise Overloaded(f"{self._most} pictures are at work and {self._waiting} wait (ALLM_IMAGE_QUEUE)")
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()
