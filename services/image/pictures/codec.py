"""The service's view of a codec process: it takes one file at a time, and any file may kill it."""

from __future__ import annotations

from services.errors import Internal
from services.image.pictures.coding.messages import Allow, Decode, Decoded, Encode, Encoded, FromCodec, Refused
from services.sandbox.messages import Begun
from services.sandbox.start import ConfinedGone, ConfinedStart
from services.worker.process import WorkerDied, WorkerProcess

MODULE = "services.image.pictures.coding"
FILES = 500  # files before a process is replaced, which bounds what its libraries leak


class Codec:
    """A warmed-up codec process."""

    def __init__(self, process: WorkerProcess[FromCodec]) -> None:
        self._process = process
        self._files = 0
        self._broken = False  # must not get another file

    @classmethod
    async def start(cls, max_pixels: int) -> Codec:
        """Starts a process and waits until it can take a file. Raises Unsupported or Internal if it cannot."""
        start = ConfinedStart(
            module=MODULE,
            messages=FromCodec,
            name="picture codec",
            kind="the picture codec",
            first=Allow(max_pixels),
        )
        return cls(await start.run())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def reusable(self) -> bool:
        """True if the process may take another file."""
        return not self._broken and self._files < FILES

    async def run(self, order: Decode | Encode) -> Decoded | Encoded | Refused:
        """Reads or writes a file. Raises ConfinedGone. If the task is cancelled, the process takes no other file."""
        self._files += 1
        self._broken = True  # until this file is done
        begun = False
        try:
            self._process.send(order)
            begun = isinstance(await self._process.receive(), Begun)
            answer = await self._process.receive()
        except WorkerDied as death:
            raise ConfinedGone(begun=begun) from death
        if not isinstance(answer, Decoded | Encoded | Refused):
            raise Internal(f"the picture codec said {type(answer).__name__} in the place of an answer")
        self._broken = False
        return answer

    async def close(self) -> None:
        """Ends the process immediately."""
        self._broken = True
        await self._process.close()
