"""A scripted stand-in for the audio service: real gRPC, with the upload read as each test specifies."""

# ruff: noqa: N802 - gRPC names the methods

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
from allm.audio.v1 import transcription_service_pb2, transcription_service_pb2_grpc
from allm.openai.v1 import audio_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from tests.gateway.upstream import OPTIONS, Context, serve

AudioScript = Callable[[AsyncIterator[HttpBody], Context], AsyncIterator[HttpBody]]


@dataclass
class AudioUpstream:
    """The audio service of one replica. Without a script it reads the whole upload and returns its size."""

    script: AudioScript | None = None
    bodies: list[bytearray] = field(default_factory=list)  # of every upload, filled incrementally
    content_types: list[str] = field(default_factory=list)  # of every message of an upload
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    server: grpc.aio.Server | None = None

    async def start(self, address: str) -> None:
        """Serves on `address` and reports itself healthy."""
        self.server = grpc.aio.server(options=OPTIONS)
        audio_service_pb2_grpc.add_AudioServiceServicer_to_server(_AudioFacade(self), self.server)
        transcription_service_pb2_grpc.add_TranscriptionServiceServicer_to_server(_Transcription(), self.server)
        await serve(self.server, address)

    async def stop(self) -> None:
        if self.server:
            await self.server.stop(0)

    async def read(self, messages: AsyncIterator[HttpBody]) -> bytearray:
        """Reads and records the next upload completely."""
        self.bodies.append(body := bytearray())
        try:
            async for message in messages:
                self.content_types.append(message.content_type)
                body += message.data
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return body

    async def has_read(self, count: int) -> None:
        """Waits until `count` bytes of the last upload have arrived."""
        while not self.bodies or len(self.bodies[-1]) < count:  # noqa: ASYNC110 - they are counted where they arrive
            await asyncio.sleep(0.02)


@dataclass
class _AudioFacade(audio_service_pb2_grpc.AudioServiceServicer):
    upstream: AudioUpstream

    async def CreateTranscription(self, request: AsyncIterator[HttpBody], context: Context) -> AsyncIterator[HttpBody]:
        if self.upstream.script:
            async for message in self.upstream.script(request, context):
                yield message
            return
        size = len(await self.upstream.read(request))
        yield HttpBody(content_type="text/plain", data=str(size).encode())


class _Transcription(transcription_service_pb2_grpc.TranscriptionServiceServicer):
    """Answers each audio chunk immediately with the number of bytes received so far."""

    async def StreamTranscribe(
        self, request: AsyncIterator[transcription_service_pb2.StreamTranscribeRequest], context: Context
    ) -> AsyncIterator[transcription_service_pb2.StreamTranscribeResponse]:
        reply = transcription_service_pb2.StreamTranscribeResponse
        heard = 0
        async for message in request:
            if message.HasField("config"):
                started = transcription_service_pb2.TranscriptionStarted(model=message.config.model)
                yield reply(started=started)
                continue
            heard += len(message.audio)
            yield reply(partial=transcription_service_pb2.PartialText(text=str(heard)))
        yield reply(finished=transcription_service_pb2.TranscriptionFinished(tokens=heard))
