"""An endpoint on loopback that answers every chat with bytes from a test, in the pieces that the test has cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Script = Callable[[dict[str, Any]], list[bytes]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


@dataclass
class Endpoint:
    """The address of a scripted endpoint, and the requests that it got."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0


def chunk(body: bytes) -> bytes:
    """Encodes a chunk of HTTP/1.1's chunked encoding."""
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(data: Any) -> bytes:
    """Encodes an event of a stream in a separate chunk."""
    return chunk(b"data: " + json.dumps(data).encode() + b"\n\n")


def text(content: str) -> bytes:
    """Encodes the event for a piece of text."""
    return event({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]})


def usage(tokens: int) -> bytes:
    """Encodes the event with the usage."""
    details = {"cached_tokens": 3}
    return event(
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens, "prompt_tokens_details": details}}
    )


def answer(tokens: int) -> bytes:
    """Encodes a whole answer of this many tokens, as OpenAI would send it."""
    first = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]})
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    done = chunk(b"data: [DONE]\n\n")
    return HEAD + first + b"".join(text(f" w{n}") for n in range(tokens)) + last + usage(tokens) + done + END


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Endpoint]:
    """Runs an endpoint that writes each of the script's pieces separately, then closes unless asked to keep alive."""
    endpoint = Endpoint("")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoint.connections += 1
        try:
            keep_alive = True
            while keep_alive:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                endpoint.requests.append(body)
                for piece in script(body):
                    writer.write(piece)
                    await writer.drain()
                keep_alive = "connection: keep-alive" in head
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield endpoint
