"""The times of words: from the path of an alignment, with the reference's corrections of what attention gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from services.audio.engine.messages import Word
from services.audio.engine.runtime import TOKEN_SECONDS, Aligned

OPENING = "\"'“¿([{-"  # belongs to the word behind it
CLOSING = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 (full width is meant) -- belongs to the word before it
SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001 (the same)
LONGEST_MEDIAN = 0.7  # seconds: words are not longer on average, whatever the alignment says
PAUSE = 4  # times the median word: after such a silence, the first words are suspected to be too long
TRUSTED = 0.5  # seconds: where a segment's own times differ so much from its words', they are the better ones


@dataclass(slots=True)
class Utterance:
    """A segment whose words are wanted. `time_words` fills in `words`, and moves `start` and `end` to them."""

    tokens: Sequence[int]  # of text, no timestamps
    start: float  # seconds
    end: float
    words: list[Word] = field(default_factory=list)


@dataclass(slots=True)
class _Timing:
    word: str
    tokens: int
    start: float
    end: float
    probability: float

    @property
    def length(self) -> float:
        return self.end - self.start


def time_words(
    utterances: Sequence[Utterance],
    words: Sequence[str],
    word_tokens: Sequence[Sequence[int]],
    aligned: Aligned,
    offset: float = 0.0,
    spoken_until: float = 0.0,
) -> float:
    """Gives a window's utterances their words, in place; returns where the last word ends.

    `words` and their tokens are those of all the utterances' tokens together, as the vocabulary splits them, and
    `aligned` is their alignment with the window. All times are seconds that count the window's beginning as `offset`:
    the utterances' before and after, and `spoken_until`, where speech before the window ended.
    """
    timings = _timings(words, word_tokens, aligned)
    lengths = [timing.length for timing in timings if timing.length != 0]
    median = min(LONGEST_MEDIAN, float(np.median(lengths))) if lengths else 0.0
    if lengths:
        _shorten_at_sentence_ends(timings, 2 * median)
    _merge_punctuation(timings)
    place = 0
    for utterance in utterances:
        spoken: list[_Timing] = []
        tokens = 0
        while place < len(timings) and tokens < len(utterance.tokens):
            timing = timings[place]
            tokens += timing.tokens
            place += 1
            if timing.word:
                timing.start, timing.end = round(offset + timing.start, 2), round(offset + timing.end, 2)
                spoken.append(timing)
        if spoken:
            _shorten_after_pause(spoken, spoken_until, median)
            _fit(utterance, spoken, median)
            spoken_until = utterance.end
        utterance.words = [Word(timing.word, timing.start, timing.end, timing.probability) for timing in spoken]
    return spoken_until


def _timings(words: Sequence[str], word_tokens: Sequence[Sequence[int]], aligned: Aligned) -> list[_Timing]:
    """Where each word begins and ends: at the path's first step to its first token, and to the next word's."""
    first = np.concatenate([[True], np.diff(aligned.text_indices) != 0])
    # Of each token, and of the end of text. Divided, as the reference does: lengths are compared to the last bit.
    times = (aligned.time_indices[first] / round(1 / TOKEN_SECONDS)).tolist()
    timings = []
    token = 0
    for word, tokens in zip(words, word_tokens, strict=True):
        until = token + len(tokens)
        # In float64: the mean of a long word's float32 would depend on how it is summed.
        probability = float(np.mean(aligned.probabilities[token:until], dtype=np.float64))
        timings.append(_Timing(word, len(tokens), times[token], times[until], probability))
        token = until
    return timings


def _shorten_at_sentence_ends(timings: list[_Timing], longest: float) -> None:
    """A pause between sentences is part of no word: neither of the mark that ends one nor of the next one's first."""
    for before, timing in pairwise(timings):
        if timing.length > longest:
            if timing.word in SENTENCE_ENDS:
                timing.end = timing.start + longest
            elif before.word in SENTENCE_ENDS:
                timing.start = timing.end - longest


def _merge_punctuation(timings: list[_Timing]) -> None:
    """Joins marks to their words, whose times stay: what was joined to another is left with no text and no tokens."""
    word = len(timings) - 1
    for place in range(len(timings) - 2, -1, -1):
        mark = timings[place]
        if mark.word.startswith(" ") and mark.word.strip() in OPENING:
            timings[word].word = mark.word + timings[word].word
            timings[word].tokens += mark.tokens
            mark.word, mark.tokens = "", 0
        else:
            word = place
    word = 0
    for place in range(1, len(timings)):
        mark = timings[place]
        if not timings[word].word.endswith(" ") and mark.word in CLOSING:
            timings[word].word += mark.word
            timings[word].tokens += mark.tokens
            mark.word, mark.tokens = "", 0
        else:
            word = place


def _shorten_after_pause(spoken: list[_Timing], spoken_until: float, median: float) -> None:
    """A pause before a segment is not part of its first two words."""
    first, longest = spoken[0], 2 * median
    second = spoken[1] if len(spoken) > 1 else None
    if first.end - spoken_until <= PAUSE * median:
        return
    if first.length <= longest and not (second and second.end - first.start > 2 * longest):
        return
    if second and second.length > longest:
        first.end = second.start = max(second.end / 2, second.end - longest)
    first.start = max(0.0, first.end - longest)


def _fit(utterance: Utterance, spoken: list[_Timing], median: float) -> None:
    """Moves a segment's ends to its words', or, where a word reaches far beyond the segment, the word's to them."""
    first, last = spoken[0], spoken[-1]
    if utterance.start < first.end and utterance.start - TRUSTED > first.start:
        first.start = max(0.0, min(first.end - median, utterance.start))
    else:
        utterance.start = first.start
    if utterance.end > last.start and utterance.end + TRUSTED < last.end:
        last.end = max(last.start + median, utterance.end)
    else:
        utterance.end = last.end
