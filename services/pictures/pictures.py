"""Reads and writes picture files in separate processes: those that read callers' files never see results."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from services.errors import Internal, InvalidRequest, Timeout
from services.pictures.messages import Allow, Decode, DecodedPicture, Encode, EncodedPicture, FromCodec
from services.sandbox.child import OrderRefused
from services.sandbox.pool import ProcessPool
from services.sandbox.process import ConfinedGone, ConfinedProcess, ConfinedProgram
from services.settings.modality_settings import ImageSettings

MODULE = "services.pictures"
FILES = 500  # files before a process is replaced, which bounds what its libraries leak

A = TypeVar("A", DecodedPicture, EncodedPicture)


class Codecs:
    """Processes up to `most` files concurrently; `queue` more may wait."""

    def __init__(self, *, most: int, queue: int, max_pixels: int, seconds: float) -> None:
        """`seconds`: the time limit of a file, including the start of a process."""
        program = ConfinedProgram(
            module=MODULE,
            messages=FromCodec,
            name="picture codec",
            kind="the image codec",
            first=Allow(max_pixels),
            most_orders=FILES,
        )
        self.pool: ProcessPool[FromCodec] = ProcessPool(
            lambda: ConfinedProcess.start(program),
            most=most,
            queue=queue,
            seconds=seconds,
            busy=lambda waiting: f"{most} images are being processed and {waiting} wait (ALLM_IMAGE_QUEUE)",
        )
        self._seconds = seconds

    async def run(self, order: Decode | Encode, kind: type[A]) -> A | OrderRefused:
        """Reads or writes a file. If the task is cancelled, the process takes no other file.

        Raises:
            ConfinedGone: the file killed its process.
            Overloaded: all processes are busy and the queue is full.
            Timeout: the file took too long.
        """
        async with self.pool.slot():
            try:
                async with asyncio.timeout(self._seconds), self.pool.process(order) as process:
                    return await process.answer(kind, OrderRefused)
            except TimeoutError as error:
                raise Timeout(f"an image took longer than {self._seconds:g} seconds to be read or written") from error

    async def decode(self, order: Decode) -> DecodedPicture:
        """Decodes a caller's file to pixels.

        Raises:
            InvalidRequest: the file is no picture, damaged, or too large; `param` is the order's, or mask.
            Overloaded, Timeout: too many files are being read, or this one takes too long.
            Unsupported: the package that reads pictures is not installed.
            Internal: no process stays alive until it begins with the file.
        """
        try:
            answer = await self.run(order, DecodedPicture)
        except ConfinedGone as gone:
            message = f"'{order.param}' cannot be decoded: it crashed the decoder."
            raise InvalidRequest(message, param=order.param) from gone
        if isinstance(answer, OrderRefused):
            raise InvalidRequest(answer.message, param=answer.param or order.param)
        return answer


class Pictures:
    """Reads uploads and writes results, for the image service."""

    def __init__(self, settings: ImageSettings) -> None:
        self._readers, self._writers = (
            Codecs(
                most=settings.codecs,
                queue=settings.queue_limit,
                max_pixels=settings.max_image_pixels,
                seconds=settings.stall_seconds,
            )
            for _ in range(2)
        )

    async def start(self) -> None:
        """Starts the first processes. Raises Unsupported if pictures cannot be read here, and Internal."""
        await self._readers.pool.start()
        await self._writers.pool.start()

    async def close(self) -> None:
        """Ends all idle processes."""
        await self._readers.pool.close()
        await self._writers.pool.close()

    @property
    def processes(self) -> list[int]:
        """Process ids of the idle processes, readers first."""
        return self._readers.pool.processes + self._writers.pool.processes

    async def decode(self, order: Decode) -> DecodedPicture:
        """Decodes an upload to pixels. Raises as `Codecs.decode`."""
        return await self._readers.decode(order)

    async def encode(self, order: Encode) -> bytes:
        """Encodes a result as a file. Raises Internal, Overloaded, Timeout."""
        try:
            answer = await self._writers.run(order, EncodedPicture)
        except ConfinedGone as gone:
            raise Internal("the image codec ended while it encoded a result") from gone
        if isinstance(answer, OrderRefused):
            raise Internal(f"a result could not be encoded: {answer.message}")
        return answer.data
