"""Recorded speech as input for the runtimes."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np

from services.audio.engine.mel import log_mel
from services.audio.engine.messages import EngineOptions
from services.audio.engine.runtime import WINDOW_FRAMES, Decoded, Floats, Runtime, Step
from tests.audio.engine.recordings import samples_of
from tests.speech import Clip, librivox

SAMPLES_PER_FRAME = 160
LOGPROB = 1e-3  # allowed difference between batches and between libraries


def options(path: Path, **others: Any) -> EngineOptions:
    """Returns options that run a model on one CPU thread."""
    return EngineOptions(model_id="whisper", path=str(path), threads=1, gpu=False, **others)


def step(**others: Any) -> Step:
    """Returns a greedy step unless overridden."""
    given = {"temperature": 0.0, "beam_size": 1, "best_of": 3, "max_tokens": 224} | others
    return Step(**given)


def spoken() -> tuple[Clip, ...]:
    """Returns the three shortest sentences, about 4 s each: the silence after them takes most of the time."""
    return tuple(sorted(librivox(), key=lambda clip: clip.seconds)[:3])


@functools.cache
def mels() -> Floats:
    """Returns the spectrograms of the clips: [3, 80, 3000]."""
    return np.stack([log_mel(samples_of(clip), 80) for clip in spoken()])


@functools.cache
def frames() -> list[int]:
    """Returns the number of columns of each clip that hold audio."""
    return [min(WINDOW_FRAMES, len(samples_of(clip)) // SAMPLES_PER_FRAME) for clip in spoken()]


@functools.cache
def encoded(runtime: Runtime) -> list[Any]:
    """Returns handles of the three windows; encodes once because encoding takes longest."""
    return runtime.encode(mels())


def understood(text: str, clip: Clip) -> bool:
    """Returns True if the text has most of the words of the clip."""
    heard, said = (set(re.findall(r"[a-z]+", words.lower())) for words in (text, clip.transcript))
    return len(heard & said) > len(said) / 2


def same(found: Decoded, wanted: Any) -> bool:
    """Returns True if two decodings of a window agree."""
    return (
        found.tokens == list(wanted.tokens)
        and abs(found.avg_logprob - wanted.avg_logprob) < LOGPROB
        and abs(found.no_speech_prob - wanted.no_speech_prob) < LOGPROB
    )
