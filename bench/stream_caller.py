"""Callers of bench/paced_text.py: each reads one stream and records the latency of its tokens."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc
from allm.openai.v1 import text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from bench.connection import Address
from bench.response import EventStream, Response, ResponseError

READ_BYTES = 65536
LINE = "\n"
SHOWN = 200  # characters of a reason
STREAMS_A_CHANNEL = 50  # a client with many streams uses several connections
_MOMENT = re.compile(rb'"content":"(\d+)"')
_NS = 1e-9
RAMP_SECONDS = 2.0  # the streams begin within this time, so that they do not all connect at the same moment
SETTLE_SECONDS = 1.0  # tokens count after this time
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


@dataclass(frozen=True, slots=True)
class Token:
    """A received token."""

    made: float  # creation time, in seconds of the monotonic clock
    late: float  # seconds until its caller received it


Caller = Callable[[int], Awaitable[list[Token]]]


class Incomplete(Exception):
    """A stream was incomplete; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The results of many streams."""

    late_s: list[float]  # of tokens made after all streams had begun and settled
    tokens: int  # of all complete streams
    failed: list[str]


async def read_all(caller: Caller, streams: int, seconds: float, ramp_seconds: float = RAMP_SECONDS) -> Streams:
    """Reads streams in parallel, each within `seconds`. `caller` reads the stream with a given number."""
    found: list[Token] = []
    failed: list[str] = []

    async def read(number: int) -> None:
        await asyncio.sleep(ramp_seconds * number / streams)
        try:
            async with asyncio.timeout(seconds):
                found.extend(await caller(number))
        except (Incomplete, OSError, ResponseError, grpc.aio.AioRpcError) as error:  # TimeoutError is an OSError
            failed.append(f"{type(error).__name__}: {str(error).partition(LINE)[0][:SHOWN]}")

    counted = time.perf_counter() + ramp_seconds + (SETTLE_SECONDS if ramp_seconds else 0.0)
    await asyncio.gather(*(read(number) for number in range(streams)))
    return Streams([token.late for token in found if token.made >= counted], len(found), failed)


class GrpcCallers:
    """The gRPC callers, an async context manager that closes their channels to `address`."""

    def __init__(self, address: str, streams: int, tokens: int) -> None:
        self._tokens = tokens
        self._open = AsyncExitStack()
        count = -(-streams // STREAMS_A_CHANNEL)
        self._channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(count)]
        self._chats = [chat_service_pb2_grpc.ChatServiceStub(channel) for channel in self._channels]
        self._facades = [text_service_pb2_grpc.TextServiceStub(channel) for channel in self._channels]

    async def __aenter__(self) -> GrpcCallers:
        for channel in self._channels:
            await self._open.enter_async_context(channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def typed(self, number: int) -> list[Token]:
        """Reads a typed stream. Raises Incomplete."""
        stub = self._chats[number % len(self._chats)]
        tokens: list[Token] = []
        finished = False
        request = chat_service_pb2.StreamChatCompletionRequest(model=str(self._tokens))
        async for event in stub.StreamChatCompletion(request):
            if event.HasField("delta"):
                tokens.append(_token(event.delta.text, time.perf_counter_ns()))
            finished |= event.HasField("finished")
        return _whole(tokens, self._tokens, finished)

    async def facade(self, number: int) -> list[Token]:
        """Reads the messages that the gateway turns into server-sent events. Raises Incomplete."""
        stub = self._facades[number % len(self._facades)]
        tokens: list[Token] = []
        finished = False
        async for message in stub.CreateChatCompletion(HttpBody(data=json.dumps({"model": self._tokens}).encode())):
            now = time.perf_counter_ns()
            tokens.extend(_token(moment, now) for moment in _MOMENT.findall(message.data))
            finished |= b"[DONE]" in message.data
        return _whole(tokens, self._tokens, finished)


class RestCallers:
    """The REST callers, each with its own connection."""

    def __init__(self, url: str, tokens: int) -> None:
        self._address = Address.of(url)
        self._tokens = tokens

    async def read(self, _: int) -> list[Token]:
        """Reads a stream of server-sent events. Raises Incomplete, OSError and ResponseError."""
        reader, writer = await asyncio.open_connection(self._address.host, self._address.port)
        try:
            body = json.dumps({"model": self._tokens, "stream": True}).encode()
            writer.write(self._address.post("/v1/chat/completions", body, ""))
            return await self._events(reader)
        finally:
            writer.close()

    async def _events(self, reader: asyncio.StreamReader) -> list[Token]:
        response, events = Response(), EventStream()
        tokens: list[Token] = []
        finished = False
        while not response.complete and (data := await reader.read(READ_BYTES)):
            now = time.perf_counter_ns()
            for event in events.feed(response.feed(data)):
                tokens.extend(_token(moment, now) for moment in _MOMENT.findall(event))
                finished |= event == b"[DONE]"
        if response.status != 200:
            raise Incomplete(f"HTTP {response.status}")
        return _whole(tokens, self._tokens, finished and response.complete)


def _token(moment: str | bytes, now: int) -> Token:
    made = int(moment)
    return Token(made * _NS, (now - made) * _NS)


def _whole(tokens: list[Token], wanted: int, finished: bool) -> list[Token]:
    if len(tokens) != wanted or not finished:
        raise Incomplete(f"{len(tokens)} of {wanted} tokens, {'with' if finished else 'without'} an end")
    return tokens
