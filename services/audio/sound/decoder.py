"""A decoder process of the service: it takes one file after the other, and any of them may end it."""

from __future__ import annotations

import time

from services.audio.sound.decoding.messages import FromDecoder, Open, ToDecoder
from services.sandbox.messages import Begun
from services.sandbox.start import ConfinedStart
from services.worker.process import WorkerDied, WorkerProcess

MODULE = "services.audio.sound.decoding"
FILES = 200  # a process is replaced after this many, whatever its libraries have leaked by then


class Decoder:
    """A warmed-up decoder process."""

    def __init__(self, process: WorkerProcess[FromDecoder]) -> None:
        self._process = process
        self._files = 0
        self.idle_since = time.monotonic()
        self.broken = False  # must not get another file

    @classmethod
    async def start(cls) -> Decoder:
        """Starts a process and waits until it can take a file. Raises Unsupported or Internal if it cannot."""
        start = ConfinedStart(module=MODULE, messages=FromDecoder, name="sound decoder", kind="the sound decoder")
        return cls(await start.run())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def peak_memory(self) -> int:
        """Peak memory of the process in bytes; 0 if it is unknown."""
        return self._process.peak_memory

    @property
    def reusable(self) -> bool:
        """True if the process may take another file."""
        return not self.broken and self._files < FILES

    async def begin(self, order: Open) -> bool:
        """Sends a file to the process. Returns False if the process was gone before it began."""
        self._files += 1
        self.broken = True  # until this file has ended well
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
        """Ends the process immediately."""
        self.broken = True
        await self._process.close()
