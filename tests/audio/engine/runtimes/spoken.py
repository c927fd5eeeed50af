"""Real speech as the runtimes take it."""

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
LOGPROB = 1e-3  # what batches and libraries may differ by


def options(path: Path, **others: Any) -> EngineOptions:
    """To run a model on one thread of the CPU."""
    return EngineOptions(model_id="whisper", path=str(path), threads=1, gpu=False, **others)


def step(**others: Any) -> Step:
    """Greedy, unless it says otherwise."""
    given = {"temperature": 0.0, "beam_size": 1, "best_of": 3, "max_tokens": 224} | others
    return Step(**given)


def spoken() -> tuple[Clip, ...]:
    """The three shortest sentences, about 4 s each: what they take longest for is the silence behind them."""
    return tuple(sorted(librivox(), key=lambda clip: clip.seconds)[:3])


@functools.cache
def mels() -> Floats:
    """Of these [3, 80, 3000]."""
    return np.stack([log_mel(samples_of(clip), 80) for clip in spoken()])


@functools.cache
def frames() -> list[int]:
    """How many columns of each are sound."""
    return [min(WINDOW_FRAMES, len(samples_of(clip)) // SAMPLES_PER_FRAME) for clip in spoken()]


@functools.cache
def encoded(runtime: Runtime) -> list[Any]:
    """Handles of the three windows. Encoding takes longer than all else: it is done once."""
    return runtime.encode(mels())


def understood(text: str, clip: Clip) -> bool:
    """Whether most of what is said in a clip is in the text."""
    heard, said = (set(re.findall(r"[a-z]+", words.lower())) for words in (text, clip.transcript))
    return len(heard & said) > len(said) / 2


def same(found: Decoded, wanted: Any) -> bool:
    """Whether two ways to decode a window came to the same."""
    return (
        found.tokens == list(wanted.tokens)
        and abs(found.avg_logprob - wanted.avg_logprob) < LOGPROB
        and abs(found.no_speech_prob - wanted.no_speech_prob) < LOGPROB
    )
