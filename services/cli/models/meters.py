"""One round of benchmarking: a chat with a prompt that no cache holds, or a recording, sent whole and as a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from allm.audio.v1 import transcription_service_pb2 as pb
from allm.audio.v1 import transcription_service_pb2_grpc
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc

from services.cli.models.connection import by_model, readable_errors
from services.cli.problem import Problem

ROUND_SECONDS = 600.0
# One token each in almost every vocabulary; longer prompts repeat them.
WORDS = "the sea was calm and the small boat moved slowly to the far side of the bay where a light was on".split()  # noqa: SIM905 (as many quoted words are harder to read)
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Round:
    """A measured request: seconds to its first token or text, and tokens per second."""

    first_token: float
    rate: float


class Meter(Protocol):
    """Measures one kind of models."""

    def round(self, model_id: str) -> Round:
        """Measures one request. Raises Problem if it fails, or its answer is too short to measure."""


@dataclass(frozen=True, slots=True)
class ChatMeter:
    """Measures a chat model through the typed chat API."""

    chat: chat_service_pb2_grpc.ChatServiceStub
    tokens: int  # tokens of each answer, at least 2
    prompt_tokens: int  # approximate

    def round(self, model_id: str) -> Round:
        """Sends one request. Raises Problem if it fails, or its answer is too short to measure."""
        request = chat_service_pb2.StreamChatCompletionRequest(
            model=model_id,
            messages=[
                chat_pb2.ChatMessage(
                    role=chat_pb2.CHAT_ROLE_USER, content=[chat_pb2.ContentPart(text=prompt(self.prompt_tokens))]
                )
            ],
            sampling=chat_pb2.SamplingParameters(temperature=0, max_tokens=self.tokens, ignore_eos=True),
        )
        began = time.perf_counter()
        first = last = 0.0
        generated = 0
        with readable_errors():
            for event in self.chat.StreamChatCompletion(request, timeout=ROUND_SECONDS, metadata=by_model(model_id)):
                if event.HasField("delta"):
                    first = first or time.perf_counter()
                elif event.HasField("finished"):
                    last = time.perf_counter()
                    generated = event.finished.usage.completion_tokens
        if not first or generated < 2 or last <= first:
            raise Problem(f"{model_id} answered with {generated} tokens, which are too few to measure: raise --tokens")
        return Round(first - began, (generated - 1) / (last - first))


def prompt(tokens: int) -> str:
    """Returns a text of about that many tokens, with a unique beginning, so that no cache holds it."""
    words = [WORDS[at % len(WORDS)] for at in range(max(0, tokens - 12))]  # about 12 tokens are the random number's
    return f"{uuid.uuid4().hex[:8]}: {' '.join(words)}"


@dataclass(frozen=True, slots=True)
class SpeechMeter:
    """Measures a transcription model through the typed audio API."""

    audio: transcription_service_pb2_grpc.TranscriptionServiceStub
    recording: Path

    def round(self, model_id: str) -> Round:
        """Measures the rate with the whole recording, and the time to first text with a stream of it.

        Raises:
            Problem: a request fails, the recording has no speech, or it cannot be read.
        """
        try:
            sound = self.recording.read_bytes()
        except OSError as error:
            raise Problem(f"{self.recording}: {error.strerror}") from error
        config = pb.TranscriptionConfig(model=model_id, temperature=0)
        with readable_errors():
            rate = self._rate(config, sound)
            first = self._first_text(config, sound)
        if not rate or not first:
            raise Problem(f"{model_id} found no speech in {self.recording}: give a recording of speech")
        return Round(first, rate)

    def _rate(self, config: pb.TranscriptionConfig, sound: bytes) -> float:
        """Returns tokens per second of the whole request."""
        requests = [pb.TranscribeRequest(audio=piece) for piece in _pieces(sound)]
        began = time.perf_counter()
        answer = self.audio.Transcribe(iter([pb.TranscribeRequest(config=config), *requests]), timeout=ROUND_SECONDS)
        return answer.transcript.tokens / (time.perf_counter() - began)

    def _first_text(self, config: pb.TranscriptionConfig, sound: bytes) -> float:
        """Returns seconds until any text, final or not, arrives; 0: none does."""
        requests = [pb.StreamTranscribeRequest(audio=piece) for piece in _pieces(sound)]
        began = time.perf_counter()
        opening = pb.StreamTranscribeRequest(config=config)
        call = self.audio.StreamTranscribe(iter([opening, *requests]), timeout=ROUND_SECONDS)
        for event in call:
            if event.segment.text or event.partial.text:
                call.cancel()
                return time.perf_counter() - began
        return 0.0


def _pieces(sound: bytes) -> Iterator[bytes]:
    for start in range(0, len(sound), PIECE_BYTES):
        yield sound[start : start + PIECE_BYTES]
