"""Recorded speech: the word error rate and word times match the reference implementations.

Both use temperature 0 only: sampling at higher temperatures differs from run to run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any, TypeVar

import faster_whisper
import jiwer
import pytest

from services.audio.engine.messages import Decoding, EngineOptions, Segment
from services.audio.engine.runtime import Runtime
from services.audio.engine.runtimes.faster_whisper import FasterWhisper
from services.audio.engine.window import Samples
from tests.audio.engine.engine_session import EngineSession
from tests.audio.engine.recordings import samples_of
from tests.late import late
from tests.remembered import remembered
from tests.speech import Clip, clips, librivox, long_prompt
from tests.whisper_weights import TINY_EN_CT2, TINY_EN_PT, tiny_en_ct2, tiny_en_pt

whisper = late("whisper")
whisper_normalizers = late("whisper.normalizers")
whisper_runtime = late("services.audio.engine.runtimes.whisper")
whisper_tokenizer = late("whisper.tokenizer")

POINT = 0.01  # of the word error rate
CLOSE = 0.3  # seconds
THREADS = 1  # more threads block each other on a busy machine
COLD = (0.0,)
PACKAGES = ("faster-whisper", "ctranslate2", "onnxruntime", "openai-whisper", "torch")  # dependencies of a reference
LONGEST = 8  # clip limit in seconds; the faster reference also gets the long clip
T = TypeVar("T")


@dataclass(frozen=True)
class Spoken:
    word: str
    start: float
    end: float


def options(path: object) -> EngineOptions:
    return EngineOptions(model_id="whisper-tiny.en", path=str(path), threads=THREADS, gpu=False)


def quietly(make: Callable[[], T]) -> T:
    """Calls a function without warnings about open files: the whisper package leaves every file that it reads open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return make()


@cache
def chosen() -> list[Clip]:
    return [*(clip for clip in clips() if clip.seconds < LONGEST), long_prompt()]


@cache
def sounds() -> list[Samples]:
    return [samples_of(clip) for clip in chosen()]


@cache
def transcripts() -> list[str]:
    return [clip.transcript for clip in chosen()]


@cache
def normal() -> Callable[[str], str]:
    return quietly(whisper_normalizers.EnglishTextNormalizer)


@pytest.fixture(scope="module")
def fast() -> Iterator[Runtime]:
    yield FasterWhisper(options(tiny_en_ct2()), lambda _: None)


def reference(name: str, weights: str, spoken: list[Samples], make: Callable[[], Any]) -> Any:
    """Returns a package's result on the clips with the given weights; computed once per machine."""
    given = [name.encode(), weights.encode(), *(sound.tobytes() for sound in spoken)]
    return remembered(__file__, PACKAGES, given, make)


def fast_reference() -> list[list[Spoken]]:
    def make() -> Any:
        model = faster_whisper.WhisperModel(str(tiny_en_ct2()), device="cpu", compute_type="int8", cpu_threads=THREADS)
        found = [model.transcribe(sound, temperature=COLD, word_timestamps=True)[0] for sound in sounds()]
        return [[(word.word, word.start, word.end) for one in segments for word in one.words] for segments in found]

    return _spoken(reference("fast", TINY_EN_CT2, sounds(), make))


def fast_reference_with_vad() -> list[str]:
    def make() -> Any:
        model = faster_whisper.WhisperModel(str(tiny_en_ct2()), device="cpu", compute_type="int8", cpu_threads=THREADS)
        found = [model.transcribe(sound, temperature=COLD, vad_filter=True)[0] for sound in sounds()]
        return ["".join(segment.text for segment in segments) for segments in found]

    texts: list[str] = reference("fast with vad", TINY_EN_CT2, sounds(), make)
    return texts


def slow_reference(sentences: list[Samples]) -> list[list[Spoken]]:
    def make() -> Any:
        model = quietly(lambda: whisper.load_model(str(tiny_en_pt()), device="cpu"))
        quietly(lambda: whisper_tokenizer.get_tokenizer(False))
        asked = {"temperature": 0.0, "word_timestamps": True, "fp16": False}
        found = [model.transcribe(sound, **asked)["segments"] for sound in sentences]
        words = [[word for one in segments for word in one["words"]] for segments in found]
        return [[(word["word"], float(word["start"]), float(word["end"])) for word in each] for each in words]

    return _spoken(reference("slow", TINY_EN_PT, sentences, make))


def _spoken(reported: list[list[tuple[str, float, float]]]) -> list[list[Spoken]]:
    return [[Spoken(*word) for word in words] for words in reported]


def words_of(segments: list[Segment]) -> list[Spoken]:
    return [Spoken(word.word, word.start, word.end) for segment in segments for word in segment.words or []]


def error_rate(texts: list[str], truth: list[str]) -> float:
    return float(jiwer.wer([normal()(text) for text in truth], [normal()(text) for text in texts]))


def text_of(words: list[Spoken]) -> str:
    return "".join(word.word for word in words)


def check_close(ours: list[list[Spoken]], reference: list[list[Spoken]]) -> None:
    """Checks that 95% of the words that both results have are at the same time."""
    close = total = 0
    for mine, theirs in zip(ours, reference, strict=True):
        plain = [[word.word.strip(" .,").lower() for word in words] for words in (mine, theirs)]
        for block in SequenceMatcher(None, *plain, autojunk=False).get_matching_blocks():
            for index in range(block.size):
                one, other = mine[block.a + index], theirs[block.b + index]
                close += abs(one.start - other.start) <= CLOSE and abs(one.end - other.end) <= CLOSE
        total += len(theirs)
    assert close / total >= 0.95


def check_times(segments: list[Segment], sound: Samples) -> None:
    """Checks that times increase and lie within the file."""
    before = 0.0
    for segment in segments:
        assert before <= segment.start <= segment.end <= len(sound) / 16000 + 0.001
        before = segment.start
        for word in segment.words or []:
            assert before <= word.start <= word.end <= segment.end
            before = word.start
        before = segment.end


@pytest.mark.slow
def test_faster_whisper_is_as_right_as_the_package_and_as_punctual(fast: Runtime) -> None:
    found = EngineSession(fast).transcribe(sounds(), Decoding(vad=None, words=True, temperatures=COLD))
    wanted = fast_reference()
    for segments, sound in zip(found, sounds(), strict=True):
        check_times(segments, sound)
    theirs = error_rate([text_of(words) for words in wanted], transcripts())
    assert error_rate(["".join(one.text for one in segments) for segments in found], transcripts()) <= theirs + POINT
    check_close([words_of(segments) for segments in found], wanted)


@pytest.mark.slow
def test_whisper_is_as_right_as_the_package_and_as_punctual() -> None:
    """Runs without beam search, which costs this runtime most: runtimes/test_whisper.py compares it."""
    sentences, truth = sounds()[:-1], transcripts()[:-1]
    runtime = whisper_runtime.OpenAIWhisper(options(tiny_en_pt()), lambda _: None)
    decoding = Decoding(vad=None, words=True, temperatures=COLD, beam_size=1)
    found = EngineSession(runtime).transcribe(sentences, decoding)
    wanted = slow_reference(sentences)
    for segments, sound in zip(found, sentences, strict=True):
        check_times(segments, sound)
    theirs = error_rate([text_of(words) for words in wanted], truth)
    assert error_rate(["".join(one.text for one in segments) for segments in found], truth) <= theirs + POINT
    check_close([words_of(segments) for segments in found], wanted)


@pytest.mark.slow
def test_with_voice_detection_and_shorter_windows_as_many_words_are_right(fast: Runtime) -> None:
    session = EngineSession(fast)
    found = session.transcribe(sounds(), Decoding(words=True, temperatures=COLD))
    for segments, sound in zip(found, sounds(), strict=True):
        check_times(segments, sound)
    theirs = error_rate(fast_reference_with_vad(), transcripts())
    assert error_rate(["".join(one.text for one in segments) for segments in found], transcripts()) <= theirs + POINT


def test_logprobs_are_those_of_the_text(fast: Runtime) -> None:
    (segments,) = EngineSession(fast).transcribe([samples_of(librivox()[4])], Decoding(logprobs=True))
    for segment in segments:
        assert segment.logprobs is not None
        assert b"".join(one.piece for one in segment.logprobs).decode() == segment.text
        assert all(one.logprob <= 0 for one in segment.logprobs)
        mean = sum(one.logprob for one in segment.logprobs) / len(segment.logprobs)
        assert mean == pytest.approx(segment.avg_logprob, abs=0.5)
