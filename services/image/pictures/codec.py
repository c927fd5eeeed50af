"""A codec process, seen from the service: it takes one file after the other and may be lost with any of them."""

from __future__ import annotations

from services.errors import Internal
from services.image.pictures.coding.messages import Allow, Decode, Decoded, Encode, Encoded, FromCodec, Refused
from services.sandbox.messages import Begun
from services.sandbox.start import ConfinedGone, ConfinedStart
from services.worker.process import WorkerDied, WorkerProcess

MODULE = "services.image.pictures.coding"
FILES = 500  # a process is replaced after so many, whatever its libraries have leaked by then


class Codec:
    """A process that has been warmed up."""

    def __init__(self, process: WorkerProcess[FromCodec]) -> None:
        self._process = process
        self._files = 0
        self._broken = False  # not to be given another file

    @classmethod
    async def start(cls, max_pixels: int) -> Codec:
        """Starts a process and waits until it can take a file. Raises Unsupported and Internal where it cannot."""
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
        """Whether it may have another file."""
        return not self._broken and self._files < FILES

    async def run(self, order: Decode | Encode) -> Decoded | Encoded | Refused:
        """Has a file read or written. Raises ConfinedGone; one whose task is cancelled meanwhile takes no other."""
        self._files += 1
        self._broken = True  # until this file has come to its end
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
        """Ends the process at once."""
        self._broken = True
        await self._process.close()
