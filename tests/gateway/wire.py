"""A raw HTTP client with full control over headers and bytes, and without a client library's defaults."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

SECONDS = 60


@dataclass(frozen=True)
class Reply:
    """A whole HTTP response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Returns OpenAI's error object; fails if the body is anything else."""
        assert self.headers["content-type"].startswith("application/json"), self
        body = self.json
        assert set(body) == {"error"}, self
        assert set(body["error"]) == {"message", "type", "param", "code"}, self
        error: dict[str, Any] = body["error"]
        return error


async def send(
    port: int,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    body: bytes | Iterable[bytes] | None = None,
    source: str = "127.0.0.1",
) -> Reply:
    """Sends one request over a separate connection from the address `source`. An iterable body is sent chunked."""
    return await asyncio.to_thread(_send, port, method, path, headers or {}, body, source)


def _send(
    port: int, method: str, path: str, headers: dict[str, str], body: bytes | Iterable[bytes] | None, source: str
) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS, source_address=(source, 0))
    try:
        connection.request(method, path, body, headers, encode_chunked=not isinstance(body, bytes | None))
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


@asynccontextmanager
async def posting(port: int, path: str, body: bytes, wait: bool = True) -> AsyncIterator[asyncio.StreamReader]:
    """Sends a POST whose response is read incrementally or not at all; leaving the block closes the connection."""
    # The limit is small, so that unread data stays in the kernel and in the gateway.
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=16384)
    try:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        if wait:
            await writer.drain()
        yield reader
    finally:
        writer.close()
