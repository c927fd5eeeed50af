"""The quality of a decoded window, judged by the thresholds of Whisper's paper: a text that repeats itself or is
improbable is decoded again, and improbable text without speech counts as silence.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from services.audio.engine.runtime import Decoded, Vocabulary

REPETITIVE = 2.4  # compression ratio above which a text is a loop
UNLIKELY = -1.0  # mean logprob below which a text is doubted
NO_SPEECH = 0.6  # no-speech probability above which a doubted text counts as silence


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A decoded window with the figures that judge it."""

    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float

    @property
    def silent(self) -> bool:
        """True if nothing is said, so that the text is dropped."""
        return self.no_speech_prob > NO_SPEECH and self.avg_logprob <= UNLIKELY

    @property
    def failed(self) -> bool:
        """True if another attempt should follow."""
        doubted = self.avg_logprob < UNLIKELY
        silence = doubted and self.no_speech_prob > NO_SPEECH
        return (doubted or self.compression_ratio > REPETITIVE) and not silence


def judged(decoded: Decoded, temperature: float, vocabulary: Vocabulary) -> Attempt:
    """Returns the attempt of a decoded window, with the compression ratio of its text."""
    return Attempt(
        tokens=decoded.tokens,
        temperature=temperature,
        avg_logprob=decoded.avg_logprob,
        compression_ratio=compression_ratio(vocabulary.decode(decoded.tokens).strip()),
        no_speech_prob=decoded.no_speech_prob,
    )


def compression_ratio(text: str) -> float:
    """Returns the factor by which zlib shrinks a text; high for repetitive text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def best(attempts: Sequence[Attempt]) -> Attempt:
    """Returns the best of failed attempts: the likeliest that does not repeat itself, or else the likeliest."""
    calm = [one for one in attempts if one.compression_ratio <= REPETITIVE]
    return max(calm or attempts, key=lambda one: one.avg_logprob)
