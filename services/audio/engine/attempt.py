"""One try at decoding a window, and whether it is good enough: the thresholds of Whisper's paper."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from services.audio.engine.runtime import Decoded, Vocabulary

REPETITIVE = 2.4  # compression ratio of text from which on it is a loop
UNLIKELY = -1.0  # mean logprob under which a text is doubted
NO_SPEECH = 0.6  # probability of no speech over which a doubted text is silence


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A result, and what tells of its worth."""

    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float

    @property
    def silent(self) -> bool:
        """Whether there is nothing said: the text counts for nothing."""
        return self.no_speech_prob > NO_SPEECH and self.avg_logprob <= UNLIKELY

    @property
    def failed(self) -> bool:
        """Whether another try should follow."""
        doubted = self.avg_logprob < UNLIKELY
        silence = doubted and self.no_speech_prob > NO_SPEECH
        return (doubted or self.compression_ratio > REPETITIVE) and not silence


def judged(decoded: Decoded, temperature: float, vocabulary: Vocabulary) -> Attempt:
    """What a window was decoded to, with the compression ratio of its text."""
    return Attempt(
        tokens=decoded.tokens,
        temperature=temperature,
        avg_logprob=decoded.avg_logprob,
        compression_ratio=compression_ratio(vocabulary.decode(decoded.tokens).strip()),
        no_speech_prob=decoded.no_speech_prob,
    )


def compression_ratio(text: str) -> float:
    """How many times smaller zlib makes a text: great where it repeats itself."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def best(attempts: Sequence[Attempt]) -> Attempt:
    """Of tries that all failed: the likeliest that does not repeat itself, or the likeliest."""
    calm = [one for one in attempts if one.compression_ratio <= REPETITIVE]
    return max(calm or attempts, key=lambda one: one.avg_logprob)
