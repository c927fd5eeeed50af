"""A codec process, seen from the service: it takes one file after the other and may be lost with any of them."""

from __future__ import annotations

import asyncio
import logging

from services.image.pictures.coding.messages import (
    Allow,
    Begun,
    Decode,
    Decoded,
    Encode,
    Encoded,
    FromCodec,
    Ready,
    Refused,
    Unusable,
)
from services.residency.worker import WorkerDied, WorkerProcess
from services.rpc.errors import Internal, Unsupported

MODULE = "services.image.pictures.coding"
# glibc: no arena for each thread, and what a picture took is given back.
ENVIRON = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "1048576"}
START_SECONDS = 60.0
FILES = 500  # a process is replaced after so many, whatever its libraries have leaked by then

log = logging.getLogger(__name__)


class CodecGone(Exception):
    """The process ended; `begun` says whether with the file that it was given."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__()
        self.begun = begun


class Codec:
    """A process that has been warmed up."""

    def __init__(self, process: WorkerProcess[FromCodec]) -> None:
        self._process = process
        self._files = 0
        self._broken = False  # not to be given another file

    @classmethod
    async def start(cls, max_pixels: int) -> Codec:
        """Starts a process and waits until it can take a file. Raises Unsupported and Internal where it cannot."""
        process: WorkerProcess[FromCodec] = await WorkerProcess.start(MODULE, FromCodec, "picture codec", ENVIRON)
        try:
            process.send(Allow(max_pixels))
            async with asyncio.timeout(START_SECONDS):
                first = await process.receive()
        except (WorkerDied, TimeoutError) as error:
            await process.close()
            log.exception("a picture codec does not start")
            raise Internal("the picture codec cannot be started: its log says why") from error
        except BaseException:
            await process.close()
            raise
        if isinstance(first, Ready):
            return cls(process)
        await process.close()
        raise Unsupported(first.message if isinstance(first, Unusable) else "the picture codec is of another version")

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def reusable(self) -> bool:
        """Whether it may have another file."""
        return not self._broken and self._files < FILES

    async def run(self, order: Decode | Encode) -> Decoded | Encoded | Refused:
        """Has a file read or written. Raises CodecGone; one whose task is cancelled meanwhile takes no other."""
        self._files += 1
        self._broken = True  # until this file has come to its end
        begun = False
        try:
            self._process.send(order)
            begun = isinstance(await self._process.receive(), Begun)
            answer = await self._process.receive()
        except WorkerDied as death:
            raise CodecGone(begun=begun) from death
        if not isinstance(answer, Decoded | Encoded | Refused):
            raise Internal(f"the picture codec said {type(answer).__name__} in the place of an answer")
        self._broken = False
        return answer

    async def close(self) -> None:
        """Ends the process at once."""
        self._broken = True
        await self._process.close()
