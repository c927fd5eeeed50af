"""A live feed as a file that can be read once, from start to end: each read asks the service for more."""

from __future__ import annotations

from collections.abc import Callable

from services.audio.sound.decoding.messages import Chunk, Hungry, ToDecoder
from services.audio.sound.decoding.refusal import Refusal
from services.worker.channel import BlockingChannel, ChannelClosed

CHUNK_BYTES = 64 * 1024
SILENT_BYTES = 8 * 1024 * 1024  # as much may come without becoming sound, then it is taken for no sound at all


class Feed:
    """What a demuxer reads from. `before_waiting` is called when what came so far has all been read."""

    def __init__(self, channel: BlockingChannel[ToDecoder], before_waiting: Callable[[], None]) -> None:
        self._channel = channel
        self._before_waiting = before_waiting
        self._ahead = b""  # has come and is not read yet
        self._ended = False
        self._silent = 0
        self.received = 0  # bytes

    def read(self, count: int) -> bytes:
        """At least one byte and at most `count`; nothing at the end. Waits for the caller's next bytes."""
        if not self._ahead:
            self._ahead = self._next()
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        return data

    def peek(self, count: int) -> bytes:
        """The next `count` bytes, which are read again later; fewer at the end."""
        while len(self._ahead) < count and (data := self._next()):
            self._ahead += data
        return self._ahead[:count]

    def skip(self, count: int) -> None:
        """Passes over `count` bytes."""
        while count and (data := self.read(min(count, CHUNK_BYTES))):
            count -= len(data)
            self._silent = 0

    def close(self) -> None:
        """Nothing is held."""

    def heard(self) -> None:
        """What came became sound."""
        self._silent = 0

    def _next(self) -> bytes:
        if self._ended:
            return b""
        if self._silent > SILENT_BYTES:
            raise Refusal(f"{self._silent} bytes came in a row that hold no sound")
        self._before_waiting()
        self._channel.send(Hungry(CHUNK_BYTES))
        chunk = self._channel.receive()
        if not isinstance(chunk, Chunk):
            raise ChannelClosed(f"a {type(chunk).__name__} came in the place of a Chunk")
        self._ended = not chunk.data
        self._silent += len(chunk.data)
        self.received += len(chunk.data)
        return chunk.data
