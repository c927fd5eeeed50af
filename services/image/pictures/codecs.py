"""Codec processes of one kind: some wait warm, more start on demand, and no more than allowed run at once."""

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

TRIES = 3  # with processes that had ended while they waited


class Codecs:
    """Up to `most` files at once, and `queue` more may wait."""

    def __init__(self, *, most: int, queue: int, max_pixels: int, seconds: float) -> None:
        """`seconds`: a file that takes longer, the start of a process included, is given up."""
        self._places = asyncio.Semaphore(most)
        self._most = most
        self._queue = queue
        self._waiting = 0
        self._max_pixels = max_pixels
        self._seconds = seconds
        self._idle: list[Codec] = []
        self._closed = False

    async def start(self) -> None:
        """Starts the first process. Raises Unsupported where pictures cannot be read here, and Internal."""
        self._idle.append(await Codec.start(self._max_pixels))

    async def close(self) -> None:
        """Ends all idle processes; those with a file end with it."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(codec.close() for codec in idle))

    @property
    def processes(self) -> list[int]:
        """Process ids of those that wait for a file."""
        return [codec.pid for codec in self._idle]

    async def run(self, order: Decode | Encode) -> Decoded | Encoded | Refused:
        """Has a file read or written.

        Raises:
            ConfinedGone: a process ended with it.
            Overloaded: as many as allowed are at work, and as many wait.
            Timeout: it took too long.
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
