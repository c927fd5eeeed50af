"""Cuts a decoded window into phrases at its timestamp tokens, as the reference does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.audio.engine.runtime import TOKEN_SECONDS

FRAMES_PER_TOKEN = 2  # spectrogram columns per timestamp token


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
    """Cuts the tokens of a window with `frames` columns of sound.

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
