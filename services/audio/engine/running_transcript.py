"""A request in the batch loop: its waiting chunks, the outcomes of its windows, and its segments in order; and a row,
one of its windows, encoded and decoded at rising temperatures until it is done.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from services.audio.engine.decoding_quality import Attempt, best
from services.audio.engine.mel import Mel, RequestOpened, SpectrogramChunk
from services.audio.engine.messages import Segment, Word
from services.audio.engine.outcome import Outcome, TimedPhrase, WindowText, text_tokens, window_text
from services.audio.engine.runtime import WINDOW_FRAMES, Encoded, Step, Vocabulary

RESET_TEMPERATURE = 0.5  # text that was sampled above it does not prompt the next window


class RunningTranscript:
    """A running request."""

    def __init__(self, opened: RequestOpened, vocabulary: Vocabulary, context: int) -> None:
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
        self.waiting: deque[SpectrogramChunk] = deque()
        self.partial: SpectrogramChunk | None = None  # speech that is not over
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


# Columns that windows are padded to: the encoder's work grows with them, and only equal lengths decode together.
LENGTHS = (1500, 2000, 2500, WINDOW_FRAMES)
# Silence after the sound, in columns. Models were trained on windows of 30 s: with 2 s of silence they repeat
# themselves; with 5 s as many words were right as with 30 s (tiny.en: 6.8 % wrong of 129 clips, and 6.9 %), for a
# third of the encoder's work or less; with 4 s as many as with 5 s (4.85 % wrong of 147 clips, both).
MARGIN = 400
# Longest length that a window is padded to only to share a decoding batch.
JOINED = 2000


@dataclass(slots=True, eq=False)
class Row:
    """A window in progress."""

    transcript: RunningTranscript
    chunk: SpectrogramChunk
    columns: int  # number of encoded columns
    window: Encoded | None = None
    prompt: list[int] = field(default_factory=list)
    rung: int = 0  # index of the temperature
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        """True if the request was cancelled, refused or finished."""
        return self.transcript.gone

    @property
    def mel(self) -> Mel:
        """The encoder's input, [n_mels, columns]."""
        return self.chunk.mel[:, : self.columns]

    @property
    def temperature(self) -> float:
        """The temperature of the next attempt."""
        return self.transcript.decoding.temperatures[self.rung]

    def kind(self) -> Hashable:
        """Returns the key that all rows of one decoding batch share."""
        decoding = self.transcript.decoding
        width = decoding.best_of if self.temperature > 0 else decoding.beam_size
        return self.columns, self.temperature, width

    def step(self, max_tokens: int) -> Step:
        """Returns the options for decoding rows of this kind."""
        decoding = self.transcript.decoding
        return Step(
            temperature=self.temperature,
            beam_size=decoding.beam_size,
            best_of=decoding.best_of,
            max_tokens=max_tokens,
            seed=self.rung,
        )

    def failed_again(self, attempt: Attempt) -> bool:
        """Records a failed attempt. Returns True if another one should follow.

        A window shorter than 30 s is padded to 30 s first: its length alone may be the cause.
        """
        self.attempts.append(attempt)
        if self.columns < WINDOW_FRAMES:
            self.columns, self.window, self.attempts = WINDOW_FRAMES, None, []
            return True
        if self.rung + 1 < len(self.transcript.decoding.temperatures):
            self.rung += 1
            return True
        return False

    def best(self) -> Attempt:
        """Returns the best of the failed attempts."""
        return best(self.attempts)


def columns_for(frames: int, shortest: int, others: Collection[int]) -> int:
    """Returns the columns that a window with `frames` columns of sound is padded to; at least `shortest`.

    Pads to the next length if `others` have that length and can then share a batch: decoding another batch costs more
    than encoding the extra columns.
    """
    wanted = max(shortest, frames + MARGIN)
    place = next((place for place, length in enumerate(LENGTHS) if length >= wanted), len(LENGTHS) - 1)
    longer = LENGTHS[min(place + 1, len(LENGTHS) - 1)]
    if LENGTHS[place] not in others and longer in others and longer <= JOINED:
        return longer
    return LENGTHS[place]
