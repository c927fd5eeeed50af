"""A window in the batch loop: encoded, tried at rising temperatures, and done."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from services.audio.engine.attempt import Attempt, best
from services.audio.engine.chunk import Chunk
from services.audio.engine.mel import Mel
from services.audio.engine.runtime import WINDOW_FRAMES, Encoded, Step
from services.audio.engine.transcript import Transcript

# Columns that windows are filled up to: the encoder's work grows with them, and only equal ones are decoded together.
LENGTHS = (1500, 2000, 2500, WINDOW_FRAMES)
# Silence behind the sound, in columns. Models were trained on windows of 30 s: with 2 s of silence they repeat
# themselves, with 5 s as many words were right as with 30 s (tiny.en: 6.8 % wrong of 129 clips, and 6.9 %), for a
# third of the encoder's work or less; with 4 s as many as with 5 (4.85 % wrong of 147 clips, both).
MARGIN = 400
# The longest that a window is filled up to only to be decoded with others.
JOINED = 2000


@dataclass(slots=True, eq=False)
class Row:
    """A window that is being worked on."""

    transcript: Transcript
    chunk: Chunk
    columns: int  # that are encoded
    window: Encoded | None = None
    prompt: list[int] = field(default_factory=list)
    rung: int = 0  # of the ladder of temperatures
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.transcript.gone

    @property
    def mel(self) -> Mel:
        """What is encoded, [n_mels, columns]."""
        return self.chunk.mel[:, : self.columns]

    @property
    def temperature(self) -> float:
        """Of the next try."""
        return self.transcript.decoding.temperatures[self.rung]

    def kind(self) -> Hashable:
        """What is the same for all rows that are decoded together."""
        decoding = self.transcript.decoding
        width = decoding.best_of if self.temperature > 0 else decoding.beam_size
        return self.columns, self.temperature, width

    def step(self, max_tokens: int) -> Step:
        """How to decode it and its like."""
        decoding = self.transcript.decoding
        return Step(
            temperature=self.temperature,
            beam_size=decoding.beam_size,
            best_of=decoding.best_of,
            max_tokens=max_tokens,
            seed=self.rung,
        )

    def failed_again(self, attempt: Attempt) -> bool:
        """Notes a try that failed; whether there is another one to make.

        A window that was not filled up to 30 s is first filled up: that alone may have been the fault.
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
        """The best of the tries that failed."""
        return best(self.attempts)


def columns_for(frames: int, shortest: int, others: Collection[int]) -> int:
    """How many columns a window with so many of sound is filled up to; at least what the runtime needs.

    Up to the next length where `others`, which it can then be decoded with, have that: a batch more to decode costs
    more than that much more to encode.
    """
    wanted = max(shortest, frames + MARGIN)
    place = next((place for place, length in enumerate(LENGTHS) if length >= wanted), len(LENGTHS) - 1)
    longer = LENGTHS[min(place + 1, len(LENGTHS) - 1)]
    if LENGTHS[place] not in others and longer in others and longer <= JOINED:
        return longer
    return LENGTHS[place]
