"""One client's connection to a server: sends one request at a time and reads its answer as a stream of events.

All work happens in the transport's callback: the task that sent a request wakes up once, when its answer is complete.

By default every request has its own connection. llama-server closes the connection after a streamed answer although
its headers announce keep-alive (cpp-httplib 0.58), so a client that reuses it loses its next request. A comparison has
to treat both servers alike; `keep_alive` is for servers that do keep the connection open.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from bench.chat import Answer, body_error
from bench.response import EventStream, Response, ResponseError


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server."""

    host: str
    port: int
    keep_alive: bool = False  # one connection serves many requests

    @classmethod
    def of(cls, url: str, keep_alive: bool = False) -> Address:
        """Parses a URL such as `http://127.0.0.1:8080`; drops its path."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is no URL of the form http://host:port")
        return cls(parts.hostname, parts.port or 80, keep_alive)

    def post(self, path: str, body: bytes, api_key: str) -> bytes:
        """Returns the bytes of a POST of JSON."""
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            f"Connection: {'keep-alive' if self.keep_alive else 'close'}",
            f"Content-Length: {len(body)}",
        ]
        if api_key:
            lines.append(f"Authorization: Bearer {api_key}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class _Exchange(asyncio.Protocol):
    """The callbacks of one TCP connection."""

    def __init__(self, keep_alive: bool) -> None:
        self._keep_alive = keep_alive
        self.transport: asyncio.WriteTransport | None = None
        self._response = Response()
        self._events = EventStream()
        self._failure = b""  # the body of a response that is not an event stream
        self._answer: Answer | None = None
        self._finished: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's transports do not subclass asyncio's
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes, answer: Answer) -> asyncio.Future[None]:
        """Writes a request and parses its response into `answer`; the future is done when that is complete."""
        self._response, self._events, self._failure = Response(), EventStream(), b""
        self._answer = answer
        self._finished = asyncio.get_running_loop().create_future()
        if self.transport is None:
            self._end("the connection was closed before the request")
        else:
            self.transport.write(request)
        return self._finished

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        answer, response = self._answer, self._response
        if answer is None:
            return
        try:
            body = response.feed(data)
        except ResponseError as problem:
            self._end(str(problem))
            return
        if response.status == 200 and response.content_type.startswith("text/event-stream"):
            for event in self._events.feed(body):
                answer.event(event, now)
        else:
            self._failure += body
        if response.complete:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._response.close()
        complete = self._response.complete
        self._end(None if complete else f"the connection was closed in the middle of an answer ({exc or 'clean end'})")

    def _end(self, problem: str | None) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if problem is not None:
            answer.fail(problem)
        elif self._response.status != 200:
            answer.fail(f"HTTP {self._response.status}: {body_error(self._failure)}")
        elif not self._response.content_type.startswith("text/event-stream"):
            answer.fail(f"not a stream but {self._response.content_type or 'no content type'}")
        if self.transport is not None and not (self._keep_alive and self._response.keep_alive and problem is None):
            self.transport.close()
            self.transport = None
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)


class Connection:
    """The connection of one client, opened on demand."""

    def __init__(self, address: Address, timeout_seconds: float, says_done: bool = True) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._says_done = says_done  # the server ends its streams with [DONE]
        self._exchange: _Exchange | None = None

    async def send(self, request: bytes, wanted_tokens: int) -> Answer:
        """Sends one request and waits for its whole answer; the answer holds any failure, none is raised."""
        answer = Answer(time.perf_counter())
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await (await self._open()).send(request, answer)
        except TimeoutError:
            answer.fail(f"no complete answer within {self._timeout_seconds:g} s")
            self.close()
        except OSError as problem:
            answer.fail(f"no connection: {problem}")
        answer.finish(wanted_tokens, self._says_done)
        return answer

    def close(self) -> None:
        """Closes the connection."""
        if self._exchange is not None and self._exchange.transport is not None:
            self._exchange.transport.abort()
        self._exchange = None

    async def _open(self) -> _Exchange:
        if self._exchange is None or self._exchange.transport is None:
            loop = asyncio.get_running_loop()
            _, self._exchange = await loop.create_connection(
                lambda: _Exchange(self._address.keep_alive), self._address.host, self._address.port
            )
        return self._exchange
