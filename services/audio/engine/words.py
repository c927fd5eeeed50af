"""Word times: from the path of an alignment, with the reference's corrections of attention errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from services.audio.engine.messages import Word
from services.audio.engine.runtime import TOKEN_SECONDS, Aligned

OPENING = "\"'“¿([{-"  # belongs to the word after it
CLOSING = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 (full width is meant) -- belongs to the word before it
SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001 (the same)
LONGEST_MEDIAN = 0.7  # seconds: the median word is not longer, whatever the alignment says
PAUSE = 4  # times the median word: after such a silence, the first words may be too long
TRUSTED = 0.5  # seconds: a segment's own times are better if they differ by more than this from its words'


@dataclass(slots=True)
class Utterance:
    """A segment that needs words. `time_words` sets `words`, and moves `start` and `end` to them."""

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
    """Sets the words of a window's utterances, in place; returns the end of the last word.

    `words` and their tokens are those of all the utterances together, as the vocabulary splits them, and `aligned` is
    their alignment with the window. All times are seconds, with the window's start at `offset`: the utterances' before
    and after, and `spoken_until`, the end of speech before the window.
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
    """Times each word: from the path's first step on its first token to that on the next word's."""
    first = np.concatenate([[True], np.diff(aligned.text_indices) != 0])
    # For each token, and the end of text. Division as in the reference: lengths are compared to the last bit.
    times = (aligned.time_indices[first] / round(1 / TOKEN_SECONDS)).tolist()
    timings = []
    token = 0
    for word, tokens in zip(words, word_tokens, strict=True):
        until = token + len(tokens)
        # In float64: a float32 mean of a long word would depend on the order of its sum.
        probability = float(np.mean(aligned.probabilities[token:until], dtype=np.float64))
        timings.append(_Timing(word, len(tokens), times[token], times[until], probability))
        token = until
    return timings


def _shorten_at_sentence_ends(timings: list[_Timing], longest: float) -> None:
    """Removes a pause between sentences from the mark that ends one and from the first word of the next."""
    for before, timing in pairwise(timings):
        if timing.length > longest:
            if timing.word in SENTENCE_ENDS:
                timing.end = timing.start + longest
            elif before.word in SENTENCE_ENDS:
                timing.start = timing.end - longest


def _merge_punctuation(timings: list[_Timing]) -> None:
    """Joins marks to their words, whose times stay; a joined mark keeps no text and no tokens."""
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
    """Removes a pause before a segment from its first two words."""
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
    """Moves a segment's ends to its words', or, if a word reaches far beyond the segment, the word's to the segment."""
    first, last = spoken[0], spoken[-1]
    if utterance.start < first.end and utterance.start - TRUSTED > first.start:
        first.start = max(0.0, min(first.end - median, utterance.start))
    else:
        utterance.start = first.start
    if utterance.end > last.start and utterance.end + TRUSTED < last.end:
        last.end = max(last.start + median, utterance.end)
    else:
        utterance.end = last.end
