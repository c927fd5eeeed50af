"""Decoded windows judged by Whisper's thresholds, case by case as in the reference."""

from __future__ import annotations

import pytest

from services.audio.engine.decoding_quality import Attempt, best, compression_ratio, judged
from services.audio.engine.runtime import Decoded
from tests.audio.engine.scripted_whisper import FewWords
from tests.case import case
from tests.late import late

whisper_utils = late("whisper.utils")


def attempt(avg_logprob: float = -0.2, ratio: float = 1.0, no_speech: float = 0.0) -> Attempt:
    return Attempt(
        tokens=[1], temperature=0.0, avg_logprob=avg_logprob, compression_ratio=ratio, no_speech_prob=no_speech
    )


def test_thresholds() -> None:
    for one, failed, silent in [
        (attempt(), False, False),
        (attempt(ratio=2.5), True, False),
        (attempt(ratio=2.4), False, False),
        (attempt(avg_logprob=-1.1), True, False),
        (attempt(avg_logprob=-1.0), False, False),
        (attempt(avg_logprob=-1.1, no_speech=0.7), False, True),
        (attempt(avg_logprob=-1.1, no_speech=0.6), True, False),
        (attempt(avg_logprob=-0.9, no_speech=0.99), False, False),
        (attempt(avg_logprob=-1.1, ratio=9.0, no_speech=0.7), False, True),
        (attempt(ratio=9.0, no_speech=0.7), True, False),
    ]:
        with case(one=one, failed=failed, silent=silent):
            assert (one.failed, one.silent) == (failed, silent)


def test_a_repeated_text_is_seen_as_one() -> None:
    assert judged(Decoded([7] * 100, -0.1, 0.0), 0.0, FewWords()).failed
    assert not judged(Decoded(list(range(40)), -0.1, 0.0), 0.0, FewWords()).failed
    assert not judged(Decoded([], -0.1, 0.0), 0.0, FewWords()).failed


@pytest.mark.parametrize("text", ["", "a", "no no no no no no no no no", "日本語", "You are now muted. " * 5])
def test_the_compression_ratio_is_the_references(text: str) -> None:
    assert compression_ratio(text) == whisper_utils.compression_ratio(text)


def test_the_best_of_failures_is_the_likeliest_that_does_not_repeat_itself() -> None:
    repeated, unlikely, less = attempt(-0.1, 9.0), attempt(-2.0), attempt(-1.5)
    assert best([repeated, unlikely, less]) is less
    assert best([attempt(-0.5, 9.0), repeated]) is repeated
