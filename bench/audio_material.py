"""The recordings and the Whisper models of the audio bench, which are those of the tests.

A clip is the bytes of its file, so that each contender decodes it too. The long recording joins all clips at 16 kHz.
"""

from __future__ import annotations

import importlib
import io
import random
import re
import sys
import wave
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jiwer

TESTS = Path(__file__).parents[1] / "tests"
RATE = 16_000
LONG = -1  # the number of the long recording
LONG_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Recording:
    """A WAV file in memory and its reference text."""

    name: str
    content: bytes
    seconds: float
    transcript: str


@cache
def recordings() -> tuple[Recording, ...]:
    """Returns fifteen clips of 3 to 30 s. Raises AssertionError if `make test` has not fetched them."""
    found = [
        Recording(clip.path.name, clip.path.read_bytes(), clip.seconds, clip.transcript)
        for clip in of_tests("speech").clips()
    ]
    return tuple(found)


@cache
def long_recording() -> Recording:
    """Builds ten minutes of all clips repeated, in another order each time, with pauses of half a second."""
    samples: list[bytes] = []
    said: list[str] = []
    seconds, turn = 0.0, 0
    while seconds < LONG_SECONDS:
        for number in order(turn, len(recordings())):
            if seconds >= LONG_SECONDS:
                break
            sound = _plain(recordings()[number].content)
            samples += [sound, bytes(RATE)]
            said.append(recordings()[number].transcript)
            seconds += len(sound) / 2 / RATE + 0.5
        turn += 1
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(b"".join(samples))
    return Recording("long.wav", content.getvalue(), seconds, " ".join(said))


def recording(number: int) -> Recording:
    """Returns a clip or the long recording."""
    return long_recording() if number == LONG else recordings()[number]


def order(seed: int | str, count: int) -> list[int]:
    """Returns the clip numbers of `count` requests: each clip equally often, in an order that depends on the seed."""
    chosen = [number % len(recordings()) for number in range(count)]
    random.Random(seed).shuffle(chosen)  # noqa: S311 - nothing is secret here
    return chosen


def model_folder() -> Path:
    """Returns the folder of tiny.en for CTranslate2."""
    return Path(of_tests("whisper_weights").tiny_en_ct2())


def checkpoint() -> Path:
    """Returns the same weights in OpenAI's own file."""
    return Path(of_tests("whisper_weights").tiny_en_pt())


def word_errors(pairs: Iterable[tuple[str, str]]) -> float:
    """Returns the word error rate in percent. Each pair is (transcript, text)."""
    truth, texts = zip(*((_words(first), _words(second)) for first, second in pairs), strict=True)
    return 100 * float(jiwer.wer(list(truth), list(texts)))


def _words(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s']", " ", text.lower().replace("'", "")).split())


def _plain(content: bytes) -> bytes:
    """Returns the samples of a file: one channel, int16, 16 kHz."""
    # Slow to import and needed once.
    from faster_whisper.audio import decode_audio  # type: ignore[import-untyped]  # noqa: PLC0415

    sound = decode_audio(io.BytesIO(content), sampling_rate=RATE)
    plain: bytes = (sound * 32767).astype("<i2").tobytes()
    return plain


def of_tests(name: str) -> Any:
    """Imports a module of the tests."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    return importlib.import_module(name)
