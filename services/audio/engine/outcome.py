"""The outcome of decoding a window: its text, cut into phrases with words and token logprobs in the file's time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.audio.engine.decoding_quality import Attempt
from services.audio.engine.mel import SpectrogramChunk
from services.audio.engine.messages import TokenLogprob, Word
from services.audio.engine.runtime import TOKEN_SECONDS, Aligned, Vocabulary
from services.audio.engine.window import Window
from services.audio.engine.words import Utterance, time_words

LOWEST_LOGPROB = -9999.0  # for a probability of 0
FRAMES_PER_TOKEN = 2  # spectrogram columns per timestamp token


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of decoding a window."""

    chunk: SpectrogramChunk
    attempt: Attempt
    reached: float  # the last temperature tried
    cut: Cut | None = None  # None: silence
    aligned: Aligned | None = None  # if words or logprobs are requested and there is text
    more: bool = False  # the rest of the window is decoded separately

    @property
    def first(self) -> float:
        """Start in the window, in seconds."""
        return self.chunk.first / 100

    @property
    def seek(self) -> int:
        """Start in the file, in columns."""
        return round(self.chunk.window.at(self.first) * 100) if self.chunk.first else self.chunk.window.seek


@dataclass(slots=True)
class TimedPhrase:
    """A phrase. Times are seconds in the file."""

    start: float
    end: float
    tokens: list[int]  # with timestamps, in the window
    words: list[Word] | None = None
    logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True)
class WindowText:
    """The phrases of a window, with times in the file."""

    phrases: list[TimedPhrase] = field(default_factory=list)
    last_word: float | None = None  # end of the last word
    spoken_until: float = 0.0  # end of speech, for the words of the next window


def text_tokens(tokens: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Returns the tokens that are text."""
    return [token for token in tokens if token < vocabulary.eot]


def window_text(
    outcome: Outcome, vocabulary: Vocabulary, language: str, words: bool, logprobs: bool, spoken_until: float
) -> WindowText:
    """Converts a window's phrases to the file's time. `spoken_until` is the end of speech before the window."""
    window = outcome.chunk.window
    timed = WindowText(spoken_until=spoken_until)
    for phrase in outcome.cut.phrases if outcome.cut else []:
        start, end = window.span(outcome.first + phrase.start, outcome.first + phrase.end)
        timed.phrases.append(TimedPhrase(start, end, phrase.tokens))
    if outcome.aligned is None:
        return timed
    if logprobs:
        _add_logprobs(timed.phrases, outcome.aligned, vocabulary)
    if words:
        _add_words(timed, outcome, outcome.aligned, vocabulary, language)
    return timed


def _add_logprobs(phrases: Sequence[TimedPhrase], aligned: Aligned, vocabulary: Vocabulary) -> None:
    at = 0
    for phrase in phrases:
        tokens = text_tokens(phrase.tokens, vocabulary)
        chances = aligned.probabilities[at : at + len(tokens)].tolist()
        at += len(tokens)
        phrase.logprobs = [
            TokenLogprob(vocabulary.piece(token), math.log(chance) if chance > 0 else LOWEST_LOGPROB)
            for token, chance in zip(tokens, chances, strict=True)
        ]


def _add_words(timed: WindowText, outcome: Outcome, aligned: Aligned, vocabulary: Vocabulary, language: str) -> None:
    """Times words within the window if silence was left out of it, else in the file, as the reference does."""
    window = outcome.chunk.window
    whole = len(window.pieces) == 1
    begin = window.start if whole else 0.0  # of the window, in the time base of the words
    offset = begin + outcome.first
    cuts = outcome.cut.phrases if outcome.cut else []
    utterances = [
        Utterance(text_tokens(phrase.tokens, vocabulary), offset + phrase.start, offset + phrase.end) for phrase in cuts
    ]
    tokens = [token for utterance in utterances for token in utterance.tokens]
    texts, groups = vocabulary.split_words(tokens, language)
    before = timed.spoken_until if whole else timed.spoken_until - window.start
    time_words(utterances, texts, groups, aligned, offset, before)
    for phrase, utterance in zip(timed.phrases, utterances, strict=True):
        phrase.words = [_in_file(word, window, begin) for word in utterance.words]
        if phrase.words:
            # Timed words locate a phrase more accurately than timestamp tokens.
            phrase.start, phrase.end = window.span(max(0.0, utterance.start - begin), utterance.end - begin)
            phrase.start = min(phrase.start, phrase.words[0].start)
            phrase.end = max(phrase.end, phrase.words[-1].end)
            timed.last_word = phrase.words[-1].end
            timed.spoken_until = phrase.end


def _in_file(word: Word, window: Window, begin: float) -> Word:
    start, end = window.word(max(0.0, word.start - begin), max(0.0, word.end - begin))
    return Word(word.word, round(start, 2), round(end, 2), word.probability)


@dataclass(slots=True)
class Phrase:
    """Tokens between two timestamps. Times are seconds in the window."""

    start: float
    end: float
    tokens: list[int]  # including timestamps


@dataclass(frozen=True, slots=True)
class Cut:
    """The phrases of a window."""

    phrases: list[Phrase]
    advance: int  # columns to the start of the next window, when windows follow their text
    whole: bool  # the text reaches the window's end: one timestamp, after which nothing is said


def cut(tokens: Sequence[int], timestamp_begin: int, frames: int, keep_rest: bool = False) -> Cut:
    """Cuts the tokens of a window with `frames` columns of sound into phrases at timestamps, as the reference does.

    Two adjacent timestamps end one phrase and begin the next. Text after the last such pair is unfinished and left to
    the next window, unless a single timestamp ends it, or `keep_rest` says that the window ends with a pause.
    """
    stamps = [token >= timestamp_begin for token in tokens]
    whole = stamps[-2:] == [False, True]
    borders = [index for index in range(1, len(tokens)) if stamps[index - 1] and stamps[index]]
    if not borders:
        return Cut([_only(tokens, timestamp_begin, frames)], frames, whole)
    if whole:
        borders.append(len(tokens))
    phrases = []
    for first, last in zip([0, *borders], borders, strict=False):
        part = list(tokens[first:last])
        phrases.append(Phrase(_seconds(part[0], timestamp_begin), _seconds(part[-1], timestamp_begin), part))
    rest = list(tokens[borders[-1] :])
    if keep_rest and any(token < timestamp_begin for token in rest):
        start = _seconds(rest[0], timestamp_begin)
        phrases.append(Phrase(start, max(start, frames / 100), rest))
        return Cut(phrases, frames, whole)
    advance = frames if whole else (tokens[borders[-1] - 1] - timestamp_begin) * FRAMES_PER_TOKEN
    # A window that does not advance would be decoded forever.
    return Cut(phrases, advance if 0 < advance <= frames else frames, whole)


def _only(tokens: Sequence[int], timestamp_begin: int, frames: int) -> Phrase:
    """Returns a window without a border as one phrase; it ends at its last timestamp, if any."""
    stamps = [token for token in tokens if token > timestamp_begin]
    end = _seconds(stamps[-1], timestamp_begin) if stamps else frames / 100
    return Phrase(0.0, end, list(tokens))


def _seconds(token: int, timestamp_begin: int) -> float:
    return (token - timestamp_begin) * TOKEN_SECONDS
