"""Audio of any length in bounded memory, when the sender never runs further ahead than the worker allows."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from services.audio.engine.messages import Decoding, EngineOptions, LanguageFound, PartialText, VadOptions
from services.audio.engine.runtime import Decoded, Floats, Step
from services.audio.engine.runtimes.faster_whisper import FasterWhisper
from tests.audio.engine.engine_session import EngineSession
from tests.audio.engine.recordings import announcement, novel, samples_of, silence
from tests.audio.engine.scripted_whisper import GOOD, Scripted, spoken
from tests.speech import librivox
from tests.whisper_weights import tiny_en_ct2

pytestmark = pytest.mark.slow

SECOND = 16_000
AHEAD = 90 * SECOND  # samples that are sent before they are consumed
SLACK = 4 * 1024 * 1024  # bytes; seven minutes of audio are 27 MB in the planners' format


class Droning(Scripted):
    """A runtime that always returns the same text."""

    def encode(self, mels: Floats) -> list[int]:
        return [0] * len(mels)

    def _result(self, name: int) -> Decoded:
        return Decoded(spoken(1, 2, 3, end=9.0), GOOD, 0.0)

    def decode(self, windows: Sequence[int], prompts: Sequence[Sequence[int]], step: Step) -> list[Decoded]:
        return [self._result(name) for name in windows]


def peak_of(turns: int, vad: VadOptions | None) -> int:
    """Returns the peak memory in bytes for `turns` parts of 50 s of audio."""
    session = EngineSession(Droning(batch=2))
    request = session.submit(Decoding(language="en", vad=vad))
    parts = [announcement(), silence(27)]
    sent = 0
    gc.collect()
    tracemalloc.start()
    try:
        for turn in range(turns):
            session.feed(request, parts[turn % 2], last=turn == turns - 1)
            sent += len(parts[turn % 2])
            while sent - session.consumed(request) > AHEAD:
                if not session.prepare():
                    assert session.loop.turn()
        session.work(request)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert session.consumed(request) >= sent - SECOND // 10
    assert session.segments(request)[-1].end > 38 * turns
    assert not session.preparation._feeds
    assert not session.loop._transcripts
    return peak


@pytest.mark.parametrize("vad", [VadOptions(), None])
def test_ten_minutes_take_no_more_memory_than_three(vad: VadOptions | None) -> None:
    assert peak_of(12, vad) < peak_of(4, vad) + SLACK


@pytest.fixture(scope="module")
def model() -> FasterWhisper:
    options = EngineOptions(model_id="whisper-tiny.en", path=str(tiny_en_ct2()), threads=1, gpu=False)
    return FasterWhisper(options, lambda _: None)


def test_silence_and_noise_have_no_text(model: FasterWhisper) -> None:
    noise = np.random.default_rng(1).normal(0, 0.03, 12 * SECOND).astype(np.float32)
    hum = (0.1 * np.sin(np.arange(12 * SECOND) * 2 * np.pi * 100 / SECOND)).astype(np.float32)
    session = EngineSession(model)
    assert session.transcribe([silence(12), noise, hum, np.zeros(40 * SECOND, np.float32)], Decoding()) == [[]] * 4
    assert not session.of(LanguageFound)


def test_silence_between_sentences_is_left_out_and_times_are_the_files(model: FasterWhisper) -> None:
    first, second = samples_of(librivox()[3]), samples_of(librivox()[4])
    gap = silence(45)
    session = EngineSession(model)
    (segments,) = session.transcribe([np.concatenate([silence(5), first, gap, second])], Decoding(words=True))
    begin = (len(first) + len(gap)) / SECOND + 5
    words = {word.word.strip(" ,.").lower(): word for segment in segments for word in segment.words or []}
    assert 5 <= words["married"].start < words["woman"].end < 5 + len(first) / SECOND
    assert begin <= words["might"].start < words["even"].end < begin + len(second) / SECOND
    assert all(segment.end - segment.start < 15 for segment in segments)


def test_live_speech_comes_in_phrases_while_it_goes_on(model: FasterWhisper) -> None:
    session = EngineSession(model)
    request = session.submit(Decoding(live=True))
    sound = np.concatenate([samples_of(librivox()[4]), silence(1.5), novel()[: 3 * SECOND]])
    for at in range(0, len(sound), SECOND // 4):
        session.feed(request, sound[at : at + SECOND // 4])
        session.settle()
    reported = [message for message in session.sent if isinstance(message, PartialText) or hasattr(message, "segments")]
    assert isinstance(reported[0], PartialText)
    assert "amiable" in session.text(request)
    partials = session.partials(request)
    assert 3 <= len(partials) <= len(sound) / SECOND
    assert all(partial.end <= len(sound) / SECOND for partial in partials)
    session.feed(request, np.zeros(0, np.float32), last=True)
    session.work(request)
