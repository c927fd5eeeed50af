"""A fake transcription core with scripted segments, behind both wire formats on a real gRPC server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import grpc
from allm.audio.v1 import transcription_service_pb2_grpc
from allm.openai.v1 import audio_service_pb2_grpc

from services.audio.api.facade import AudioFacade
from services.audio.api.servicer import TranscriptionServicer
from services.audio.api.uploads import Uploads
from services.audio.engine.messages import Finished, LanguageFound, Segment, TokenLogprob, Word
from services.audio.sound.source import LiveFeed, RawSound, SoundSource
from services.audio.transcription import Event, Started, TranscriptionRequest
from services.errors import ModelNotFound

MODEL = "whisper-scripted"
LIMIT_BYTES = 100_000
SECONDS = 8.47  # duration of the fake audio
SPEECH_SECONDS = 6.5


def segment(index: int, start: float, end: float, text: str) -> Segment:
    """Builds a segment whose words and tokens come from its text and have equal durations."""
    pieces = [f" {piece}" for piece in text.split()]
    step = (end - start) / max(1, len(pieces))
    words = [Word(piece, start + at * step, start + (at + 1) * step, 0.9) for at, piece in enumerate(pieces)]
    return Segment(
        index=index,
        seek=0,
        start=start,
        end=end,
        text=text,
        tokens=[50364, *range(len(pieces)), 50464],
        temperature=0.0,
        avg_logprob=-0.25,
        compression_ratio=1.5,
        no_speech_prob=0.01,
        words=words,
        logprobs=[TokenLogprob(piece.encode(), -0.125) for piece in pieces],
    )


SEGMENTS = (segment(0, 0.0, 3.32, " The beach was a popular spot."), segment(1, 3.32, 8.0, " People swam, and ran."))
TEXT = "The beach was a popular spot. People swam, and ran."


def scripted_events(segments: Sequence[Segment] = SEGMENTS, language: str = "en") -> list[Event]:
    """Returns the events that the core sends for audio with these segments."""
    tokens = sum(len(each.logprobs or ()) for each in segments)
    found = [LanguageFound(1, language, 0.75)] if segments else []
    language = language if segments else ""
    return [Started(MODEL), *found, *segments, Finished(1, language, SECONDS, SPEECH_SECONDS, tokens)]


@dataclass
class ScriptedTranscriptions:
    """Records requests and sends the scripted events once all the audio has arrived."""

    events: Sequence[Event] = field(default_factory=scripted_events)
    between: Callable[[Event], Awaitable[None]] | None = None  # called before each event; may raise
    requests: list[TranscriptionRequest] = field(default_factory=list)
    sounds: list[bytes] = field(default_factory=list)
    raw: list[RawSound | None] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # set when a request has ended in any way

    async def find(self, name: str) -> SimpleNamespace:
        """Returns the only model."""
        if name != MODEL:
            raise ModelNotFound(f"The model `{name}` does not exist.")
        return SimpleNamespace(id=MODEL)

    @asynccontextmanager
    async def transcribe(
        self,
        stored: SimpleNamespace,
        request: TranscriptionRequest,
        source: SoundSource,
        raw: RawSound | None,
        client: str,
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Yields the scripted events."""
        self.requests.append(request)
        self.raw.append(raw)
        self.clients.append(client)
        try:
            yield self._scripted(source)
        finally:
            self.left.set()

    async def _scripted(self, source: SoundSource) -> AsyncIterator[Event]:
        """Yields a feed's first event immediately and its last event after the feed has ended."""
        for at, event in enumerate(self.events):
            if at == (len(self.events) - 1 if isinstance(source, LiveFeed) else 0):
                self.sounds.append(await _sound(source))
            if self.between:
                await self.between(event)
            yield event


async def _sound(source: SoundSource) -> bytes:
    if isinstance(source, LiveFeed):
        return b"".join([piece async for piece in source.chunks()])
    return source.path.read_bytes()


@asynccontextmanager
async def served(core: ScriptedTranscriptions, folder: Path, at_once: int = 8) -> AsyncIterator[grpc.aio.Channel]:
    """Serves both services over the core and yields a channel to them."""
    server = grpc.aio.server()
    uploads = Uploads(folder, LIMIT_BYTES, at_once)
    audio_service_pb2_grpc.add_AudioServiceServicer_to_server(AudioFacade(core, core, uploads), server)
    servicer = TranscriptionServicer(core, core, uploads)
    transcription_service_pb2_grpc.add_TranscriptionServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)
