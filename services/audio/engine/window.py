"""A window: at most 30 s of sound that the model decodes at once, and where in the file that sound comes from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.audio.engine.messages import SAMPLE_RATE

HOP = 160  # samples of one column of a mel spectrogram: 10 ms
WINDOW_SAMPLES = 30 * SAMPLE_RATE
TOLERANCE = SAMPLE_RATE // 5  # samples by which the model's times are wrong easily

Samples = NDArray[np.float32]  # -1..1, 16 kHz, mono


def no_samples() -> Samples:
    """No sound at all."""
    return np.zeros(0, dtype=np.float32)


class Piece(NamedTuple):
    """A part of a window that is whole in the file. All in samples."""

    window: int  # where it begins in the window
    file: int  # where it begins in the file
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Sound to decode, with the way back to the file's time.

    `pieces` are in order, without holes in the window; between two of them lies silence of the file that was left out.
    """

    samples: Samples  # [n], n <= WINDOW_SAMPLES
    pieces: tuple[Piece, ...]  # at least one
    last: bool = False  # whether it holds the end of the sound; ask `Windows.done` whether another one may follow
    margin: int = 0  # samples of silence at the most that a piece has left at its ends
    # The file's sound before and after it, a few milliseconds, for the edges of the spectrogram; empty with pieces.
    before: Samples = field(default_factory=no_samples)
    after: Samples = field(default_factory=no_samples)

    @property
    def seconds(self) -> float:
        """How long its sound is."""
        return len(self.samples) / SAMPLE_RATE

    @property
    def frames(self) -> int:
        """Whole columns of its mel spectrogram that are sound and not padding: 100 for each second."""
        return len(self.samples) // HOP

    @property
    def seek(self) -> int:
        """Where it begins in the file, in columns: hundredths of a second, as in Whisper's own output."""
        return self.pieces[0].file // HOP

    @property
    def start(self) -> float:
        """Where it begins in the file, in seconds."""
        return self.pieces[0].file / SAMPLE_RATE

    @property
    def end(self) -> float:
        """Where it ends in the file, in seconds."""
        return (self.pieces[-1].file + self.pieces[-1].length) / SAMPLE_RATE

    def at(self, seconds: float, end: bool = False) -> float:
        """The file's time of a time in the window, rising with it; what lies outside is taken as the nearer edge.

        The border of two pieces is the beginning of the second, or, for the `end` of something, the end of the first.
        """
        return self._file(seconds, self._piece(seconds, end))

    def span(self, start: float, end: float) -> tuple[float, float]:
        """The file's times of what lasts from `start` to `end` in the window, maybe over several pieces: a segment.

        The model's times are not exact, and what was left out in between may be minutes long: so what begins in the
        silence behind a piece belongs only to the next one, and what ends in the silence before a piece only to the one
        before. Where nothing but a border is left, it is taken as a word.
        """
        first, last = self._piece(start), self._piece(max(start, end), end=True)
        near = (self.margin + TOLERANCE) / SAMPLE_RATE
        late = first < last and self.pieces[first + 1].window / SAMPLE_RATE - start <= near
        early = first < last and end - self.pieces[last].window / SAMPLE_RATE <= near
        if first + late > last - early:
            return self.word(start, end)
        return self._file(start, first + late), self._file(max(start, end), last - early)

    def word(self, start: float, end: float) -> tuple[float, float]:
        """The file's times of what lasts from `start` to `end` in the window without a pause: in the piece that holds
        its middle, and nowhere else."""
        piece = self._piece((start + end) / 2)
        return self._file(start, piece), self._file(max(start, end), piece)

    def _piece(self, seconds: float, end: bool = False) -> int:
        # A time that was computed from a sample may miss it by the last bit.
        sample = round(seconds * SAMPLE_RATE, 3)
        find = bisect_left if end else bisect_right
        return max(0, find(self.pieces, sample, key=lambda piece: piece.window) - 1)

    def _file(self, seconds: float, index: int) -> float:
        piece = self.pieces[index]
        inside = min(max(seconds * SAMPLE_RATE - piece.window, 0.0), float(piece.length))
        return (piece.file + inside) / SAMPLE_RATE
