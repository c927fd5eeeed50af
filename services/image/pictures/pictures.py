"""Reads and writes picture files in separate processes: those that read callers' files never see results."""

from __future__ import annotations

from services.errors import Internal, InvalidRequest
from services.image.pictures.codecs import Codecs
from services.image.pictures.coding.messages import Decode, Decoded, Encode, Encoded, Refused
from services.sandbox.start import ConfinedGone
from services.settings.settings import ImageSettings


class Pictures:
    """Reads uploads and writes results."""

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
        await self._readers.start()
        await self._writers.start()

    async def close(self) -> None:
        """Ends all idle processes."""
        await self._readers.close()
        await self._writers.close()

    @property
    def processes(self) -> list[int]:
        """Process ids of the idle processes, readers first."""
        return self._readers.processes + self._writers.processes

    async def decode(self, order: Decode) -> Decoded:
        """Decodes an upload to pixels.

        Raises:
            InvalidRequest: the upload is no picture, damaged, or too large; `param` is image or mask.
            Overloaded, Timeout: too many uploads are being read, or this one takes too long.
        """
        try:
            answer = await self._readers.run(order)
        except ConfinedGone as gone:
            if not gone.begun:
                raise Internal("no picture codec stays alive: the service's log says why") from gone
            raise InvalidRequest("'image' cannot be decoded: it ends its decoder.", param="image") from gone
        if isinstance(answer, Refused):
            raise InvalidRequest(answer.message, param=answer.param or "image")
        if isinstance(answer, Encoded):
            raise Internal("a picture codec wrote where it should read")
        return answer

    async def encode(self, order: Encode) -> bytes:
        """Encodes a result as a file. Raises Internal, Overloaded, Timeout."""
        try:
            answer = await self._writers.run(order)
        except ConfinedGone as gone:
            raise Internal("a picture codec ended while it wrote a result") from gone
        if not isinstance(answer, Encoded):
            reason = answer.message if isinstance(answer, Refused) else "it read where it should write"
            raise Internal(f"a result could not be written: {reason}")
        return answer.data
