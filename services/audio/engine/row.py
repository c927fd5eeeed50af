"""A row of the batch loop: a window, encoded and decoded at rising temperatures until it is done."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from services.audio.engine.attempt import Attempt, best
from services.audio.engine.chunk import Chunk
from services.audio.engine.mel import Mel
from services.audio.engine.running_transcript import RunningTranscript
from services.audio.engine.runtime import WINDOW_FRAMES, Encoded, Step

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
    chunk: Chunk
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
