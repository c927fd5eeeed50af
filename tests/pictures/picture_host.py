"""A host of pictures on the loopback address, with https: what it answers depends on the path."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pytest
import trustme

BODY = b"a picture"
NAMES = ("localhost", "127.0.0.1", "pictures.test", "xn--bcher-kva.test")


@dataclass
class PictureHost:
    """A running host, and what it was asked."""

    body: bytes  # of the answer to most paths
    port: int = 0
    targets: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)  # from each TLS handshake; None: an IP address

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            target = head[0].split(" ")[1]
            self.targets.append(target)
            self.headers.append(dict(line.lower().split(": ", 1) for line in head[1:] if line))
            kind, _, value = target[1:].partition("/")
            for piece in _pieces(kind, unquote(value), self.body):
                writer.write(piece)
                await writer.drain()
            if kind == "silent":
                await reader.read()
        writer.close()


OK = b"HTTP/1.1 200 OK\r\n"
PIECES: dict[str, Sequence[bytes]] = {
    "endless": [OK + b"\r\n", *[bytes(1 << 16)] * 100],
    "garbage": [b"220 smtp.example ESMTP\r\n"],
    "short": [OK + b"content-length: 100\r\n\r\nhalf"],
    "headers": [OK, *[b"x: " + b"y" * 1000 + b"\r\n"] * 1000],
    "silent": [],
}


def _pieces(kind: str, value: str, body: bytes) -> Sequence[bytes]:
    if kind == "to":
        return [f"HTTP/1.1 302 Found\r\nlocation: {value}\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n".encode()]
    if kind == "status":
        return [f"HTTP/1.1 {value} Some\r\ncontent-length: 0\r\n\r\n".encode()]
    if kind == "long":  # only says so
        return [OK + f"content-length: {value}\r\n\r\n".encode()]
    if kind in PIECES:
        return PIECES[kind]
    return [OK + f"content-type: text/html\r\ncontent-length: {len(body)}\r\n\r\n".encode(), body]


@asynccontextmanager
async def picture_host(folder: Path, monkeypatch: pytest.MonkeyPatch, body: bytes = BODY) -> AsyncIterator[PictureHost]:
    """Runs a host. For the duration of the test, its authority is the only one that this process trusts."""
    authority, host = trustme.CA(), PictureHost(body)
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "authority.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*NAMES).configure_cert(context)
    context.sni_callback = lambda _, name, __: host.names.append(name)  # type: ignore[assignment]
    server = await asyncio.start_server(host.answer, "127.0.0.1", 0, ssl=context)
    host.port = server.sockets[0].getsockname()[1]
    async with server:
        yield host


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: Sequence[str]) -> list[str]:
    """Answers look-ups of names with these addresses, one after the other. Returns a list that gets the names."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        asked.append(host)
        addresses = answers[min(len(asked), len(answers)) - 1]
        return [(0, 0, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return asked
