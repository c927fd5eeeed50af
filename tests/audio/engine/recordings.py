"""Recorded speech as samples."""

from __future__ import annotations

import functools
import wave

import numpy as np

from services.audio.engine.window import Samples
from tests.speech import Clip, librivox, long_prompt


def samples_of(clip: Clip) -> Samples:
    """Returns a clip as float32 [n] at 16 kHz; a clip at 8 kHz is linearly interpolated."""
    with wave.open(str(clip.path)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        rate = file.getframerate()
        sound = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.float32) / 32768
    if rate == 16000:
        return sound
    assert rate == 8000
    places = np.arange(2 * len(sound)) / 2
    return np.interp(places, np.arange(len(sound)), sound).astype(np.float32)


@functools.cache
def novel() -> Samples:
    """Returns 25 s of read speech."""
    return np.concatenate([samples_of(clip) for clip in librivox()])


@functools.cache
def announcement() -> Samples:
    """Returns 73 s of a telephone system."""
    return samples_of(long_prompt())


def silence(seconds: float) -> Samples:
    """Returns deterministic microphone noise without speech."""
    noise = np.random.default_rng(3).normal(0, 3e-4, int(seconds * 16000))
    return noise.astype(np.float32)
