"""A decoder process, seen from the service: it takes one file after the other and may be lost with any of them."""

from __future__ import annotations

import time

from services.audio.sound.decoding.messages import FromDecoder, Open, ToDecoder
from services.sandbox.messages import Begun
from services.sandbox.start import ConfinedStart
from services.worker.process import WorkerDied, WorkerProcess

MODULE = "services.audio.sound.decoding"
FILES = 200  # a process is replaced after so many, whatever its libraries have leaked by then


class Decoder:
    """A process that has been warmed up."""

    def __init__(self, process: WorkerProcess[FromDecoder]) -> None:
        self._process = process
        self._files = 0
        self.idle_since = time.monotonic()
        self.broken = False  # not to be given another file

    @classmethod
    async def start(cls) -> Decoder:
        """Starts a process and waits until it can take a file. Raises Unsupported and Internal where it cannot."""
        start = ConfinedStart(module=MODULE, messages=FromDecoder, name="sound decoder", kind="the sound decoder")
        return cls(await start.run())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def peak_memory(self) -> int:
        """The most memory that the process has held, in bytes; 0 where that cannot be known."""
        return self._process.peak_memory

    @property
    def reusable(self) -> bool:
        """Whether it may have another file."""
        return not self.broken and self._files < FILES

    async def begin(self, order: Open) -> bool:
        """Hands over a file; False where the process was gone before it could look at it."""
        self._files += 1
        self.broken = True  # until this file has come to its end
        self.send(order)
        try:
            return isinstance(await self.receive(), Begun)
        except WorkerDied:
            return False

    def send(self, message: ToDecoder) -> None:
        """Queues one message."""
        self._process.send(message)

    async def receive(self) -> FromDecoder:
        """Waits for one message. Raises WorkerDied when the process ended."""
        return await self._process.receive()

    async def close(self) -> None:
        """Ends the process at once."""
        self.broken = True
        await self._process.close()
