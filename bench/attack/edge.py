"""Attacks on the gateway's edge by one client: health watches, idle connections, unfinished bodies, slow reading.

Every attack keeps what it got until the gateway has ended all of it or `Hold.over` is set, so that a bystander can be
measured in the meantime.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc

MIB = 1024**2
HELD = "held"  # outcome: the gateway let the attacker keep it
CLOSED = "closed"  # outcome: the gateway closed the connection
WATCH = "/grpc.health.v1.Health/Watch"
# Every channel has a connection of its own, however many go to one address.
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, slots=True)
class Hold:
    """The phases of an attack."""

    full: asyncio.Event = field(default_factory=asyncio.Event)  # every attempt is held, or was answered
    over: asyncio.Event = field(default_factory=asyncio.Event)  # the attacker lets go of everything


async def health_watches(address: str, hold: Hold, watches: int = 5000, connections: int = 10) -> Counter[str]:
    """Holds calls of `Health/Watch`, without a key; counts `held`, and the gRPC statuses of the others."""
    channels = [grpc.aio.insecure_channel(address, options=_OWN_CONNECTION) for _ in range(connections)]
    calls: list[grpc.aio.UnaryStreamMultiCallable[bytes, bytes]] = [channel.unary_stream(WATCH) for channel in channels]

    async def watch(number: int, settled: asyncio.Event) -> str:
        try:
            async for _ in calls[number % connections](b""):
                settled.set()
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return CLOSED

    try:
        return await _attack(hold, watch, watches)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def idle_connections(
    host: str, port: int, hold: Hold, connections: int = 10_200, first: bytes = b"", again: bool = False
) -> Counter[str]:
    """Holds connections that send nothing but the bytes `first`; counts `held` and `closed`.

    `again`: opens another one in place of each that is closed.
    """

    async def idle(number: int, settled: asyncio.Event) -> str:
        while True:
            outcome = await once(number, settled)
            if not again:
                return outcome

    async def once(_: int, settled: asyncio.Event) -> str:
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=4096)
        except OSError:
            settled.set()
            return CLOSED
        try:
            writer.write(first)
            settled.set()
            while await reader.read(4096):
                pass
        except OSError:
            pass
        finally:
            writer.transport.abort()
        return CLOSED

    return await _attack(hold, idle, connections)


async def reconnect(host: str, port: int, seconds: float) -> Counter[str]:
    """Holds silent connections, and opens another one in place of each that is closed, for some seconds."""
    hold = Hold()
    asyncio.get_running_loop().call_later(seconds, hold.over.set)
    return await idle_connections(host, port, hold, again=True)


async def unfinished_bodies(
    host: str,
    port: int,
    hold: Hold,
    bodies: int = 45,
    size: int = 31 * MIB,
    path: str = "/v1/chat/completions",
    key: str = "",
    form: str = "",
    drip: int = 0,
) -> Counter[str]:
    """Sends request bodies without their last byte; counts `held`, `closed`, and the HTTP statuses of answers.

    Args:
        form: the bodies are forms with a file of this name; empty: JSON.
        drip: bytes of each body that are sent per second; 0: as many as the gateway takes.
    """
    credentials = f"authorization: Bearer {key}\r\n" if key else ""
    kind = "multipart/form-data; boundary=limit" if form else "application/json"
    part = f'--limit\r\ncontent-disposition: form-data; name="{form}"; filename="file"\r\n\r\n' if form else ""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n{credentials}"
    request, chunk = f"{head}content-length: {len(part) + size + 1}\r\n\r\n{part}".encode(), bytes(65536)

    async def send(_: int, settled: asyncio.Event) -> str:
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=65536)
        except OSError:
            return CLOSED
        answer = asyncio.create_task(reader.readline())
        try:
            writer.write(request)
            left = size
            if drip:
                settled.set()
            while left and not answer.done():
                writer.write(chunk[: min(left, drip or left)])
                left -= min(left, drip or len(chunk), len(chunk))
                await writer.drain()
                if drip:
                    await asyncio.wait((answer,), timeout=1.0)
            settled.set()
            line = await answer
            return line.split(b" ")[1].decode() if line else CLOSED
        except OSError:
            return CLOSED
        finally:
            answer.cancel()
            writer.transport.abort()

    return await _attack(hold, send, bodies)


async def slow_readers(
    host: str, port: int, hold: Hold, body: bytes, readers: int = 200, key: str = ""
) -> Counter[str]:
    """Asks for chat completions and reads one byte a second; counts `held`, and how the answers ended.

    An answer's end is its HTTP status, and whether it was whole.
    """
    credentials = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{credentials}"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    async def read(_: int, settled: asyncio.Event) -> str:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the kernel buffers as little as it can
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        found = b""
        try:
            await loop.sock_connect(sock, (host, port))
            await loop.sock_sendall(sock, request)
            settled.set()
            while byte := await loop.sock_recv(sock, 1):
                found += byte
                if not found.startswith(b"HTTP/1.1 200"[: len(found)]):  # a refusal is read at once
                    found += await loop.sock_recv(sock, 4096)
                    break
                await asyncio.sleep(1.0)
        except OSError:
            pass
        finally:
            sock.close()
        return found.split(b" ")[1].decode() if b" " in found else CLOSED

    return await _attack(hold, read, readers)


async def _attack(hold: Hold, attempt: Callable[[int, asyncio.Event], Awaitable[str]], times: int) -> Counter[str]:
    """Runs all attempts at once. Each sets its event when it holds something, and returns when that has ended."""
    settled = [asyncio.Event() for _ in range(times)]

    async def run(number: int) -> str:
        try:
            return await attempt(number, settled[number])
        finally:
            settled[number].set()

    attempts = [asyncio.create_task(run(number)) for number in range(times)]
    over = asyncio.create_task(hold.over.wait())
    try:
        await asyncio.gather(*(event.wait() for event in settled))
        hold.full.set()
        ended = asyncio.create_task(asyncio.wait(attempts))
        await asyncio.wait((over, ended), return_when=asyncio.FIRST_COMPLETED)
        return Counter(each.result() if each.done() else HELD for each in attempts)
    finally:
        for each in (over, *attempts):
            each.cancel()
        await asyncio.gather(over, *attempts, return_exceptions=True)
