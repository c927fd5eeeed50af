"""A live feed as a file that can be read once, from start to end: each read asks the service for more."""

from __future__ import annotations

from collections.abc import Callable

from services.audio.sound.decoding.messages import Chunk, Hungry, ToDecoder
from services.sandbox.child import Refusal
from services.worker.channel import BlockingChannel, ChannelClosed

CHUNK_BYTES = 64 * 1024
SILENT_BYTES = 8 * 1024 * 1024  # most bytes without sound; then the feed is refused


class Feed:
    """A readable file for a demuxer. `before_waiting` is called when all received bytes have been read."""

    def __init__(self, channel: BlockingChannel[ToDecoder], before_waiting: Callable[[], None]) -> None:
        self._channel = channel
        self._before_waiting = before_waiting
        self._ahead = b""  # received and not read yet
        self._ended = False
        self._silent = 0
        self.received = 0  # bytes

    def read(self, count: int) -> bytes:
        """Returns at least one byte and at most `count`; nothing at the end. Waits for the caller's next bytes."""
        if not self._ahead:
            self._ahead = self._next()
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        return data

    def peek(self, count: int) -> bytes:
        """Returns the next `count` bytes and keeps them for later reads; fewer at the end."""
        while len(self._ahead) < count and (data := self._next()):
            self._ahead += data
        return self._ahead[:count]

    def skip(self, count: int) -> None:
        """Skips `count` bytes."""
        while count and (data := self.read(min(count, CHUNK_BYTES))):
            count -= len(data)
            self._silent = 0

    def close(self) -> None:
        """Does nothing: a feed holds no resource."""

    def heard(self) -> None:
        """Records that the bytes so far became sound."""
        self._silent = 0

    def _next(self) -> bytes:
        if self._ended:
            return b""
        if self._silent > SILENT_BYTES:
            raise Refusal(f"{self._silent} consecutive bytes contain no sound")
        self._before_waiting()
        self._channel.send(Hungry(CHUNK_BYTES))
        chunk = self._channel.receive()
        if not isinstance(chunk, Chunk):
            raise ChannelClosed(f"a {type(chunk).__name__} came instead of a Chunk")
        self._ended = not chunk.data
        self._silent += len(chunk.data)
        self.received += len(chunk.data)
        return chunk.data
