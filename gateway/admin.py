"""A client of Envoy's admin interface, over its Unix socket, and the drain of a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

REPLY_SECONDS = 5.0
POLL_SECONDS = 0.05
ACTIVE_REQUESTS = "http.edge.downstream_rq_active"


class AdminError(Exception):
    """Envoy's admin interface did not answer, or sent an unexpected answer."""


@dataclass(frozen=True, slots=True)
class EnvoyAdmin:
    """A client of the admin interface that listens on `socket`."""

    socket: Path

    async def is_ready(self) -> bool:
        """Reports whether Envoy has started and accepts connections."""
        try:
            status, _ = await self._call("GET", "/ready")
        except AdminError:
            return False
        return status == 200

    async def wait_ready(self) -> None:
        """Waits until Envoy has started and accepts connections. The caller limits the time."""
        while not await self.is_ready():  # noqa: ASYNC110 - another process, it has no events
            await asyncio.sleep(POLL_SECONDS)

    async def wait_answer(self) -> None:
        """Waits until Envoy gives any answer. The caller limits the time."""
        await until_it_works(lambda: self._exchange("GET", "/ready"), OSError, EOFError, ValueError, LookupError)

    async def fail_health(self) -> None:
        """Makes /healthz and /readyz return 503 and asks clients to reconnect; requests are served as before."""
        await self._call("POST", "/healthcheck/fail")

    async def drain(self) -> None:
        """Asks clients to disconnect and closes the listeners soon after; running requests continue."""
        await self._call("POST", "/drain_listeners?graceful")

    async def active_requests(self) -> int:
        """Returns the number of requests in progress."""
        _, body = await self._call("GET", f"/stats?filter=^{ACTIVE_REQUESTS}$&format=json")
        try:
            return int(json.loads(body)["stats"][0]["value"])
        except (ValueError, LookupError) as error:
            raise AdminError(f"unexpected statistics: {body[:200]!r}") from error

    async def _call(self, method: str, path: str) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                return await self._exchange(method, path)
        except (OSError, EOFError, ValueError, LookupError) as error:  # TimeoutError is an OSError
            raise AdminError(f"{method} {path}: {error}") from error

    async def _exchange(self, method: str, path: str) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\nhost: admin\r\ncontent-length: 0\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            if headers.get("transfer-encoding") == "chunked":
                body = await _read_chunks(reader)
            else:
                body = await reader.readexactly(int(headers.get("content-length", "0")))
            return int(head[0].split(" ")[1]), body
        finally:
            writer.close()


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    return body


async def drain(admin: EnvoyAdmin, seconds: float, say: Callable[[str], None]) -> None:
    """Disconnects clients and waits up to `seconds` for running requests; `say` reports their number."""
    try:
        async with asyncio.timeout(seconds):
            await admin.drain()
            if active := await admin.active_requests():
                requests = "1 running request" if active == 1 else f"{active} running requests"
                say(f"waiting up to {seconds:g} s for {requests}; Ctrl-C stops at once")
            while await admin.active_requests():  # noqa: ASYNC110 - another process, it has no events
                await asyncio.sleep(POLL_SECONDS)
    except AdminError:  # Envoy has crashed or is stuck: nothing to wait for
        return
    except TimeoutError:
        say("the time for running requests is over")


async def until_it_works(ask: Callable[[], Awaitable[object]], *failures: type[Exception]) -> None:
    """Repeats `ask` until it raises none of `failures`. The caller limits the time."""
    while True:
        with contextlib.suppress(*failures):
            await ask()
            return
        await asyncio.sleep(POLL_SECONDS)
