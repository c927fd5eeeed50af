"""Frames over a real socketpair: complete, split, truncated, too large, and malformed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import msgspec
import pytest

from services.worker import channel as channel_module
from services.worker.channel import MAX_FRAME_BYTES, AsyncChannel, BlockingChannel, ChannelClosed, pack


@dataclass(frozen=True)
class Ping:
    number: int


@dataclass(frozen=True)
class Text:
    text: str


Both = Ping | Text


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    one.settimeout(30)
    two.settimeout(30)
    with one, two:
        yield one, two


@pytest.fixture
async def ends() -> AsyncIterator[tuple[AsyncChannel[Both], socket.socket]]:
    ours, theirs = socket.socketpair()
    with theirs:
        channel: AsyncChannel[Both] = await AsyncChannel.open(ours, Both)
        yield channel, theirs
        channel.close()
        with contextlib.suppress(OSError):
            await channel._writer.wait_closed()


def test_a_frame_is_its_length_and_one_msgpack_value() -> None:
    frame = pack(Text("hé"))
    assert frame[:4] == struct.pack(">I", len(frame) - 4)
    assert msgspec.msgpack.decode(frame[4:]) == ["Text", {"text": "hé"}]


def test_a_message_over_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_FRAME_BYTES", 100)
    with pytest.raises(ValueError, match="over the limit of 100"):
        pack(Text("x" * 100))
    assert pack(Text("x" * 50))


# --- the worker's end


def test_messages_arrive_in_order_however_they_are_split(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    rng = random.Random(2)  # noqa: S311
    messages = [Ping(at) if at % 2 else Text("x" * rng.choice([0, 1, 300, 70_000])) for at in range(60)]
    data = b"".join(map(pack, messages))

    def write() -> None:
        at = 0
        while at < len(data):
            size = rng.choice([1, 2, 3, 5, 1000, 65536])
            two.sendall(data[at : at + size])
            at += size

    writer = threading.Thread(target=write)
    writer.start()
    channel: BlockingChannel[Both] = BlockingChannel(one, Both)
    assert [channel.receive() for _ in messages] == messages
    writer.join()


@pytest.mark.parametrize("length", range(len(pack(Ping(1)))))
def test_an_end_inside_a_frame_is_an_end(pair: tuple[socket.socket, socket.socket], length: int) -> None:
    one, two = pair
    channel: BlockingChannel[Both] = BlockingChannel(one, Both)
    two.sendall(pack(Text("whole")) + pack(Ping(1))[:length])
    two.close()
    assert channel.receive() == Text("whole")
    with pytest.raises(ChannelClosed):
        channel.receive()


def test_sending_to_a_closed_channel_ends_it(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    two.close()
    with pytest.raises(ChannelClosed):
        BlockingChannel(one, Both).send(Ping(1))


def test_a_frame_that_claims_too_much_is_refused_before_it_is_waited_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, two = pair
    two.sendall(struct.pack(">I", MAX_FRAME_BYTES + 1))
    with pytest.raises(ValueError, match="over the limit"):
        BlockingChannel(one, Both).receive()


@pytest.mark.parametrize("message", [["Other", {}], ["Ping", {"number": "one"}], ["Ping"], 5, None])
def test_unknown_messages_are_refused(pair: tuple[socket.socket, socket.socket], message: object) -> None:
    one, two = pair
    body = b"\xc1" if message is None else msgspec.msgpack.encode(message)
    two.sendall(struct.pack(">I", len(body)) + body)
    with pytest.raises(msgspec.DecodeError):
        BlockingChannel(one, Both).receive()


def test_threads_that_send_at_the_same_time_do_not_mix_their_frames(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    sender: BlockingChannel[Both] = BlockingChannel(one, Both)
    receiver: BlockingChannel[Both] = BlockingChannel(two, Both)
    threads = [
        threading.Thread(target=lambda letter=letter: [sender.send(Text(letter * 50_000)) for _ in range(10)])
        for letter in "abcd"
    ]
    for thread in threads:
        thread.start()
    texts = [receiver.receive().text for _ in range(40)]
    for thread in threads:
        thread.join()
    assert sorted(texts) == sorted(letter * 50_000 for letter in "abcd" for _ in range(10))


# --- the service's end


async def test_both_ends_understand_each_other(ends: tuple[AsyncChannel[Both], socket.socket]) -> None:
    channel, sock = ends
    worker: BlockingChannel[Both] = BlockingChannel(sock, Both)
    messages = [Ping(1), Text("größer 😀" * 50_000), Ping(2)]

    def echo() -> None:
        for _ in messages:
            worker.send(worker.receive())

    running = asyncio.create_task(asyncio.to_thread(echo))
    for message in messages:
        channel.send(message)
    assert [await channel.receive() for _ in messages] == messages
    await running


async def test_a_frame_may_come_byte_by_byte(ends: tuple[AsyncChannel[Both], socket.socket]) -> None:
    channel, sock = ends
    receiving = asyncio.create_task(channel.receive())
    for byte in pack(Ping(7)):
        assert not receiving.done()
        sock.sendall(bytes([byte]))
        await asyncio.sleep(0)
    assert await receiving == Ping(7)


@pytest.mark.parametrize("length", range(len(pack(Ping(1)))))
async def test_an_end_inside_a_frame_is_an_end_here_too(
    ends: tuple[AsyncChannel[Both], socket.socket], length: int
) -> None:
    channel, sock = ends
    sock.sendall(pack(Text("whole")) + pack(Ping(1))[:length])
    sock.close()
    assert await channel.receive() == Text("whole")
    with pytest.raises(ChannelClosed):
        await channel.receive()


async def test_too_large_a_frame_is_refused_here_too(ends: tuple[AsyncChannel[Both], socket.socket]) -> None:
    channel, sock = ends
    sock.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="4294967295 bytes is over the limit"):
        await channel.receive()


async def test_sending_to_a_dead_worker_is_not_an_error(ends: tuple[AsyncChannel[Both], socket.socket]) -> None:
    """Only receiving reports the end of the worker, and once."""
    channel, sock = ends
    sock.close()
    with pytest.raises(ChannelClosed):
        await channel.receive()
    channel.send(Ping(1))
    channel.close()
    channel.send(Ping(2))


async def test_closing_ends_the_other_end(ends: tuple[AsyncChannel[Both], socket.socket]) -> None:
    channel, sock = ends
    channel.send(Ping(1))
    channel.close()
    worker: BlockingChannel[Both] = BlockingChannel(sock, Both)
    assert await asyncio.to_thread(worker.receive) == Ping(1)
    with pytest.raises(ChannelClosed):
        await asyncio.to_thread(worker.receive)
