"""Messages between a service and its worker processes: length-prefixed msgpack over a socketpair.

A frame is a big-endian uint32, the number of bytes that follow, and one msgpack array: the name of the message's class
and its fields. Messages are dataclasses, so that a runtime can be tried alone, without a service's packages; nothing is
ever unpickled. This module defines no messages: both ends pass the union of theirs.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import Any, Generic, TypeVar, get_args

import msgspec

M = TypeVar("M")

MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
_open = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw]).decode


class ChannelClosed(Exception):
    """The other end is gone."""


def pack(message: object) -> bytes:
    """Encodes a message as one frame."""
    body = _encode((type(message).__name__, message))
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def _length(header: bytes | bytearray) -> int:
    """Reads the length of the frame that follows. Raises ValueError over the limit: it is no message of ours."""
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
    return int(length)


class _Reader(Generic[M]):
    """Decodes frames to messages. `kind` is the union of the expected dataclasses."""

    def __init__(self, kind: Any) -> None:
        self._decoders = {each.__name__: msgspec.msgpack.Decoder(each) for each in get_args(kind) or (kind,)}

    def read(self, body: bytes | bytearray) -> M:
        """Decodes the message of a frame. Raises msgspec.ValidationError if its class is not in the union."""
        name, fields = _open(body)
        decoder = self._decoders.get(name)
        if decoder is None:
            raise msgspec.ValidationError(f"there is no message {name[:100]!r}")
        message: M = decoder.decode(fields)
        return message


class BlockingChannel(Generic[M]):
    """The worker's end of a channel: blocking, because the worker's threads have no other work. Any thread may send."""

    def __init__(self, sock: socket.socket, kind: Any) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._reads: _Reader[M] = _Reader(kind)

    def send(self, message: object) -> None:
        """Sends one message. Raises ChannelClosed when the service is gone."""
        frame = pack(message)
        try:
            with self._sending:
                self._sock.sendall(frame)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> M:
        """Waits for one message. Raises ChannelClosed when the service is gone."""
        length = _length(self._exactly(_LENGTH.size))
        return self._reads.read(self._exactly(length))

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            try:
                received = self._sock.recv_into(view)
            except OSError as error:
                raise ChannelClosed from error
            if not received:
                raise ChannelClosed
            view = view[received:]
        return data


class AsyncChannel(Generic[M]):
    """The service's end of a channel, on its event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._reads: _Reader[M] = _Reader(kind)

    @classmethod
    async def open(cls, sock: socket.socket, kind: Any) -> AsyncChannel[M]:
        """Wraps one end of a socketpair."""
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, kind)

    @property
    def ended(self) -> bool:
        """True once the worker is gone and all its messages have been received."""
        return self._reader.at_eof()

    def send(self, message: object) -> None:
        """Queues one message. Does not detect a dead worker; `receive` does."""
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    async def receive(self) -> M:
        """Waits for one message. Raises ChannelClosed when the worker is gone."""
        try:
            length = _length(await self._reader.readexactly(_LENGTH.size))
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ChannelClosed from error
        return self._reads.read(body)

    def close(self) -> None:
        """Closes the connection; the worker's watcher notices and ends the worker."""
        self._writer.close()
