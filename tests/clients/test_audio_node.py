"""Transcription with the official npm `openai` SDK, and in real time with gRPC for Node.

The tests themselves are in transcription.test.mjs and transcription-grpc.test.mjs.
"""

from __future__ import annotations

import wave
from pathlib import Path

import pytest

from tests.clients.node import run_node_tests
from tests.speech import Clip, librivox
from tests.stack import MODEL, SPEECH_MODEL, Stack

pytestmark = pytest.mark.slow

PROTOS = Path(__file__).parents[2] / "protos"
PAUSE_SECONDS = 0.9  # after each sentence; such a pause ends a sentence
SENTENCES = 3
RATE = 16_000
SAMPLE_BYTES = 2


def samples(clip: Clip) -> bytes:
    """Returns a recording's samples without a header."""
    with wave.open(str(clip.path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, SAMPLE_BYTES)
        return file.readframes(file.getnframes())


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The paths of a sentence and of several sentences with pauses, and their transcripts."""
    sentences = librivox()[:SENTENCES]
    pause = bytes(int(PAUSE_SECONDS * RATE) * SAMPLE_BYTES)
    sound = b"".join(samples(sentence) + pause for sentence in sentences)
    folder = tmp_path_factory.mktemp("recordings")
    (folder / "reading.s16le").write_bytes(sound)
    with wave.open(str(folder / "reading.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(SAMPLE_BYTES)
        file.setframerate(RATE)
        file.writeframes(sound)
    return {
        "ALLM_SENTENCE": str(sentences[0].path),
        "ALLM_SENTENCE_TEXT": sentences[0].transcript,
        "ALLM_SENTENCE_SECONDS": str(sentences[0].seconds),
        "ALLM_READING": str(folder / "reading.wav"),
        "ALLM_READING_SAMPLES": str(folder / "reading.s16le"),
        "ALLM_READING_TEXT": " ".join(sentence.transcript for sentence in sentences),
    }


def test_openai_sdk_transcribes(stack: Stack, recordings: dict[str, str]) -> None:
    run_node_tests(
        "transcription.test.mjs",
        ALLM_BASE_URL=stack.base_url,
        ALLM_MODEL=SPEECH_MODEL,
        ALLM_TEXT_MODEL=MODEL,
        **recordings,
    )


def test_grpc_transcribes_in_real_time(stack: Stack, recordings: dict[str, str]) -> None:
    run_node_tests(
        "transcription-grpc.test.mjs",
        ALLM_GRPC=stack.grpc_address,
        ALLM_METRICS=stack.note["metrics"]["audio"],
        ALLM_MODEL=SPEECH_MODEL,
        ALLM_PROTOS=str(PROTOS),
        **recordings,
    )
