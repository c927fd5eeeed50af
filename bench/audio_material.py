"""What is transcribed: the recordings and the Whisper models of the tests, so that both come from one place.

A clip is kept as the bytes of its file; whoever transcribes it decodes it as well. The long one is made of the others,
one after another, at 16 kHz.
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
LONG = -1  # instead of a clip's number: the long recording
LONG_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Recording:
    """A WAV file in memory, and what is said in it."""

    name: str
    content: bytes
    seconds: float
    transcript: str


@cache
def recordings() -> tuple[Recording, ...]:
    """Fifteen clips, 3 to 30 s; AssertionError where `make test` has not fetched them."""
    found = [
        Recording(clip.path.name, clip.path.read_bytes(), clip.seconds, clip.transcript)
        for clip in of_tests("speech").clips()
    ]
    return tuple(found)


@cache
def long_recording() -> Recording:
    """Ten minutes: all clips again and again, each time in another order, with half a second between them."""
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
    """A clip, or the long one."""
    return long_recording() if number == LONG else recordings()[number]


def order(seed: int | str, count: int) -> list[int]:
    """Numbers of clips for `count` requests: each as often as the others, in an order that depends on the seed."""
    chosen = [number % len(recordings()) for number in range(count)]
    random.Random(seed).shuffle(chosen)  # noqa: S311 - nothing is secret here
    return chosen


def model_folder() -> Path:
    """tiny.en for CTranslate2."""
    return Path(of_tests("whisper_weights").tiny_en_ct2())


def checkpoint() -> Path:
    """The same weights as OpenAI published them."""
    return Path(of_tests("whisper_weights").tiny_en_pt())


def word_errors(pairs: Iterable[tuple[str, str]]) -> float:
    """Percent of the words that are wrong, of (transcript, text)."""
    truth, texts = zip(*((_words(first), _words(second)) for first, second in pairs), strict=True)
    return 100 * float(jiwer.wer(list(truth), list(texts)))


def _words(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s']", " ", text.lower().replace("'", "")).split())


def _plain(content: bytes) -> bytes:
    """The samples of a file: one channel, int16, 16 kHz."""
    # Slow to import, and needed once.
    from faster_whisper.audio import decode_audio  # type: ignore[import-untyped]  # noqa: PLC0415

    sound = decode_audio(io.BytesIO(content), sampling_rate=RATE)
    plain: bytes = (sound * 32767).astype("<i2").tobytes()
    return plain


def of_tests(name: str) -> Any:
    """A module of the tests."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    return importlib.import_module(name)
