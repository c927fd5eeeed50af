"""A request in the batch loop: its waiting chunks, the outcomes of its windows, and its segments in order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from services.audio.engine.chunk import Chunk, Opened
from services.audio.engine.messages import Segment, Word
from services.audio.engine.outcome import Outcome, TimedPhrase, WindowText, text_tokens, window_text
from services.audio.engine.runtime import Vocabulary

RESET_TEMPERATURE = 0.5  # text that was sampled above it does not prompt the next window


class RunningTranscript:
    """A running request."""

    def __init__(self, opened: Opened, vocabulary: Vocabulary, context: int) -> None:
        """`context` is the decoder's limit of prompt and text tokens together."""
        self.request = opened.request
        self.client = opened.client
        self.decoding = opened.decoding
        self.deadline = math.inf if opened.deadline is None else opened.deadline  # on the monotonic clock
        self.sequential = self.decoding.vad is None  # each window begins where the text of the previous one ends
        self.language = self.decoding.language or ("" if vocabulary.multilingual else vocabulary.languages[0])
        self.detects = not self.language
        self.probability = 1.0
        self.language_sent = False
        self.waiting: deque[Chunk] = deque()
        self.partial: Chunk | None = None  # speech that is not over
        self.running = 0  # windows in progress
        self.begun = False  # a window was in progress
        self.gone = False  # cancelled, refused or finished: results still in a batch are dropped
        self.samples: int | None = None  # of all its sound, once no chunk follows
        self.decoded_frames = 0
        self.tokens = 0  # of text, in all segments
        self.next = 0  # number of the window whose segments come next
        self.seek = 0  # start of the next window in columns of the file, if sequential
        self._vocabulary = vocabulary
        self._longest = context // 2 - 1  # most tokens of preceding text
        self._prompt = opened.prompt[-self._longest :]
        self._before = list(self._prompt)
        self._outcomes: dict[int, list[Outcome]] = {}
        self._index = 0
        self._reached = 0.0  # end of the last segment
        self._spoken_until = 0.0

    def prompt(self, language: str = "") -> list[int]:
        """Returns the decoder's whole prompt for the next window, in the request's language or another."""
        vocabulary = self._vocabulary
        before = self._before if self.sequential else self._prompt
        start = vocabulary.start(language or self.language, self.decoding.task)
        return [vocabulary.sot_prev, *before, *start] if before else start

    @property
    def done(self) -> bool:
        """True if nothing is left to do or to wait for."""
        return self.samples is not None and not self.waiting and not self.running

    def settle(self, outcome: Outcome) -> list[Segment]:
        """Takes the outcome of a window, or of a part of one. Returns the segments that can be sent now, in order."""
        self._outcomes.setdefault(outcome.chunk.number, []).append(outcome)
        segments: list[Segment] = []
        while parts := self._outcomes.pop(self.next, None):
            for part in parts:
                segments += self._segments(part)
            if parts[-1].more:
                break
            self.next += 1
        return segments

    def _segments(self, outcome: Outcome) -> list[Segment]:
        decoding = self.decoding
        self.decoded_frames += outcome.cut.advance if outcome.more and outcome.cut else outcome.chunk.frames
        timed = window_text(
            outcome, self._vocabulary, self.language, decoding.words, decoding.logprobs, self._spoken_until
        )
        self._spoken_until = timed.spoken_until
        if self.sequential:
            self.seek = _seek(outcome, timed)
        kept = [(phrase, text) for phrase in timed.phrases if (text := self._text(phrase))]
        segments = [self._segment(outcome, phrase, text) for phrase, text in kept]
        if self.sequential and outcome.cut:
            self._remember([phrase for phrase, _ in kept], outcome.reached)
        return segments

    def _text(self, phrase: TimedPhrase) -> str:
        """Returns the text of a phrase; nothing if it takes no time or is blank."""
        text = self._vocabulary.decode(text_tokens(phrase.tokens, self._vocabulary))
        return text if phrase.start != phrase.end and text.strip() else ""

    def _segment(self, outcome: Outcome, phrase: TimedPhrase, text: str) -> Segment:
        """Returns the next segment. Its times never go back before the end of the previous segment."""
        start = max(phrase.start, self._reached)
        end = self._reached = max(start, phrase.end)
        attempt = outcome.attempt
        segment = Segment(
            index=self._index,
            seek=outcome.seek,
            start=round(start, 3),
            end=round(end, 3),
            text=text,
            tokens=phrase.tokens,
            temperature=attempt.temperature,
            avg_logprob=attempt.avg_logprob,
            compression_ratio=attempt.compression_ratio,
            no_speech_prob=attempt.no_speech_prob,
            words=None if phrase.words is None else _in_order(phrase.words, start, end),
            logprobs=phrase.logprobs,
        )
        self._index += 1
        self.tokens += len(text_tokens(phrase.tokens, self._vocabulary))
        return segment

    def _remember(self, kept: Sequence[TimedPhrase], reached: float) -> None:
        """Keeps text as the prompt of the next window, unless its temperature was too high."""
        if not self.decoding.conditioned or reached > RESET_TEMPERATURE:
            self._before = []
            return
        self._before += [token for phrase in kept for token in phrase.tokens]
        del self._before[: -self._longest]


def _seek(outcome: Outcome, timed: WindowText) -> int:
    """Returns the start of the next window: after the last finished phrase, or its last word."""
    window, frames = outcome.chunk.window, outcome.chunk.frames
    if outcome.cut is None:
        return window.seek + frames
    if timed.last_word is not None and not outcome.cut.whole and timed.last_word > window.start:
        return min(max(round(timed.last_word * 100), window.seek + 1), window.seek + frames)
    return window.seek + outcome.cut.advance


def _in_order(words: Sequence[Word], start: float, end: float) -> list[Word]:
    """Returns words clamped to their segment, none before its predecessor."""
    placed = []
    for word in words:
        start = min(max(start, word.start), end)
        stop = min(max(start, word.end), end)
        placed.append(Word(word.word, round(start, 3), round(stop, 3), word.probability))
        start = stop
    return placed
