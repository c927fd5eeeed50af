"""A scripted stand-in for the text service: real gRPC, with answers chosen by each test."""

# ruff: noqa: N802 - gRPC names the methods

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from allm.ollama.v1 import text_service_pb2_grpc as ollama_service_pb2_grpc
from allm.openai.v1 import error_pb2, responses_service_pb2_grpc, text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody
from google.protobuf import json_format
from google.protobuf.struct_pb2 import NULL_VALUE
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

DETAILS = "grpc-status-details-bin"
# The options of every service: without the middle two, gRPC rejects the gateway's pings as abuse after half a minute.
OPTIONS = [
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
]
Context = Any
Script = Callable[[HttpBody, Context], AsyncIterator[HttpBody]]


def event(data: object) -> HttpBody:
    """Returns one server-sent event as a facade message."""
    return HttpBody(content_type="text/event-stream", data=f"data: {json.dumps(data)}\n\n".encode())


def error_details(message: str, kind: str, code: str | None, param: str | None = None) -> tuple[str, bytes]:
    """Returns OpenAI's error object as the trailing metadata that the transcoder prints."""
    status = error_pb2.ErrorStatus()
    status.error.message, status.error.type = message, kind
    for value, given in ((status.error.param, param), (status.error.code, code)):
        if given is None:
            value.null_value = NULL_VALUE
        else:
            value.string_value = given
    return DETAILS, status.SerializeToString()


async def two_events(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
    """Yields two events: the default script."""
    yield event(1)
    yield event(2)


async def serve(server: grpc.aio.Server, address: str) -> None:
    """Adds a health service that reports SERVING, and starts the server."""
    status = health.aio.HealthServicer()
    await status.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    server.add_insecure_port(address)
    await server.start()


@dataclass
class Upstream:
    """All gRPC services of the text service in one object; `chat` scripts the chat facade."""

    chat: Script = two_events
    metadata: list[dict[str, str]] = field(default_factory=list)  # of every call, in order
    bodies: list[bytes] = field(default_factory=list)  # of every chat request
    server: grpc.aio.Server | None = None

    def forget(self) -> None:
        """Restores the default script and clears the recorded calls."""
        self.chat = two_events
        self.metadata.clear()
        self.bodies.clear()

    def seen(self, context: Context) -> None:
        self.metadata.append(dict(context.invocation_metadata()))

    async def start(self, address: str) -> None:
        """Serves on `address` and reports itself healthy."""
        self.server = grpc.aio.server(options=OPTIONS)
        text_service_pb2_grpc.add_TextServiceServicer_to_server(_TextFacade(self), self.server)
        ollama_service_pb2_grpc.add_TextServiceServicer_to_server(_Ollama(self), self.server)
        responses_service_pb2_grpc.add_ResponsesServiceServicer_to_server(_Responses(self), self.server)
        chat_service_pb2_grpc.add_ChatServiceServicer_to_server(_Chat(self), self.server)
        await serve(self.server, address)

    async def stop(self) -> None:
        if self.server:
            await self.server.stop(0)
            self.server = None


@asynccontextmanager
async def text_upstream(prefix: str) -> AsyncIterator[tuple[Path, Upstream, str]]:
    """Runs an upstream on a socket in a folder of its own; yields the folder, the upstream and its address."""
    upstream = Upstream()
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        await upstream.start(address := f"unix:{name}/text.sock")
        try:
            yield Path(name), upstream, address
        finally:
            await upstream.stop()


@dataclass
class _TextFacade(text_service_pb2_grpc.TextServiceServicer):
    upstream: Upstream

    async def CreateChatCompletion(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        self.upstream.seen(context)
        self.upstream.bodies.append(request.data)
        async for message in self.upstream.chat(request, context):
            yield message


@dataclass
class _Ollama(ollama_service_pb2_grpc.TextServiceServicer):
    upstream: Upstream

    async def Chat(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        self.upstream.seen(context)
        async for message in self.upstream.chat(request, context):
            yield message


@dataclass
class _Responses(responses_service_pb2_grpc.ResponsesServiceServicer):
    """Each RPC returns its name and its request."""

    upstream: Upstream

    async def CreateResponse(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        yield self._echo("CreateResponse", request, context)

    async def CountInputTokens(self, request: HttpBody, context: Context) -> HttpBody:
        return self._echo("CountInputTokens", request, context)

    async def GetResponse(self, request: Any, context: Context) -> AsyncIterator[HttpBody]:
        yield self._echo("GetResponse", request, context)

    async def DeleteResponse(self, request: Any, context: Context) -> HttpBody:
        return self._echo("DeleteResponse", request, context)

    async def CancelResponse(self, request: Any, context: Context) -> HttpBody:
        return self._echo("CancelResponse", request, context)

    async def ListInputItems(self, request: Any, context: Context) -> HttpBody:
        return self._echo("ListInputItems", request, context)

    def _echo(self, rpc: str, request: Any, context: Context) -> HttpBody:
        self.upstream.seen(context)
        if isinstance(request, HttpBody):
            given = request.data.decode()
        else:
            given = json_format.MessageToDict(request, preserving_proto_field_name=True)
        return HttpBody(content_type="application/json", data=json.dumps([rpc, given]).encode())


@dataclass
class _Chat(chat_service_pb2_grpc.ChatServiceServicer):
    upstream: Upstream

    async def StreamChatCompletion(
        self, request: chat_service_pb2.StreamChatCompletionRequest, context: Context
    ) -> AsyncIterator[chat_service_pb2.StreamChatCompletionResponse]:
        self.upstream.seen(context)
        reply = chat_service_pb2.StreamChatCompletionResponse
        yield reply(started=chat_service_pb2.ChatStarted(id="chatcmpl-1", model=request.model))
        if request.model == "nothing":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        for text in ("Hel", "lo"):
            yield reply(delta=chat_service_pb2.ChatDelta(text=text))
        yield reply(finished=chat_service_pb2.ChatFinished())
