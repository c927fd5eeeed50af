"""One round of benchmarking a transcription model: one recording, sent as a whole and as a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allm.audio.v1 import transcription_service_pb2 as pb
from allm.audio.v1 import transcription_service_pb2_grpc

from services.cli.models.connection import told
from services.cli.models.round import ROUND_SECONDS, Round
from services.cli.problem import Problem

PIECE_BYTES = 256 * 1024


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
        with told():
            rate = self._rate(config, sound)
            first = self._first_text(config, sound)
        if not rate or not first:
            raise Problem(f"{model_id} hears nobody speak in {self.recording}: name a recording of speech")
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
