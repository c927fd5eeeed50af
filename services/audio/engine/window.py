"""A window: at most 30 s of sound that the model decodes in one pass, and its origin in the file."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.audio.engine.messages import SAMPLE_RATE

HOP = 160  # samples per column of a mel spectrogram: 10 ms
WINDOW_SAMPLES = 30 * SAMPLE_RATE
TOLERANCE = SAMPLE_RATE // 5  # samples: a common error of the model's times

Samples = NDArray[np.float32]  # -1..1, 16 kHz, mono


def no_samples() -> Samples:
    """Returns empty sound."""
    return np.zeros(0, dtype=np.float32)


class Piece(NamedTuple):
    """A part of a window that is contiguous in the file. All in samples."""

    window: int  # start in the window
    file: int  # start in the file
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Sound to decode, with its mapping to the file's time.

    `pieces` are in order, without gaps in the window; between two of them lies silence of the file that was left out.
    """

    samples: Samples  # [n], n <= WINDOW_SAMPLES
    pieces: tuple[Piece, ...]  # at least one
    last: bool = False  # it holds the end of the sound; `WindowPlanner.done` says whether another one may follow
    margin: int = 0  # most samples of silence at the ends of a piece
    # A few milliseconds of the file before and after, for the edges of the spectrogram; empty in speech windows.
    before: Samples = field(default_factory=no_samples)
    after: Samples = field(default_factory=no_samples)

    @property
    def seconds(self) -> float:
        """Length of the sound."""
        return len(self.samples) / SAMPLE_RATE

    @property
    def frames(self) -> int:
        """Whole columns of the mel spectrogram that are sound and not padding: 100 for each second."""
        return len(self.samples) // HOP

    @property
    def seek(self) -> int:
        """Start in the file in columns: hundredths of a second, as in Whisper's own output."""
        return self.pieces[0].file // HOP

    @property
    def start(self) -> float:
        """Start in the file, in seconds."""
        return self.pieces[0].file / SAMPLE_RATE

    @property
    def end(self) -> float:
        """End in the file, in seconds."""
        return (self.pieces[-1].file + self.pieces[-1].length) / SAMPLE_RATE

    def at(self, seconds: float, end: bool = False) -> float:
        """Converts a time in the window to the file's time, monotonically; a time outside becomes the nearer edge.

        The border of two pieces is the start of the second, or, for the `end` of something, the end of the first.
        """
        return self._file(seconds, self._piece(seconds, end))

    def span(self, start: float, end: float) -> tuple[float, float]:
        """Converts the times of a segment, possibly over several pieces, to the file's times.

        The model's times are not exact, and the silence left out may be minutes long: so a segment that begins in the
        silence after a piece starts in the next piece, and one that ends in the silence before a piece ends in the
        previous one. If only a border remains, the segment is treated as a word.
        """
        first, last = self._piece(start), self._piece(max(start, end), end=True)
        near = (self.margin + TOLERANCE) / SAMPLE_RATE
        late = first < last and self.pieces[first + 1].window / SAMPLE_RATE - start <= near
        early = first < last and end - self.pieces[last].window / SAMPLE_RATE <= near
        if first + late > last - early:
            return self.word(start, end)
        return self._file(start, first + late), self._file(max(start, end), last - early)

    def word(self, start: float, end: float) -> tuple[float, float]:
        """Converts the times of a word, which has no pause, to the file's times in the piece that holds its middle."""
        piece = self._piece((start + end) / 2)
        return self._file(start, piece), self._file(max(start, end), piece)

    def _piece(self, seconds: float, end: bool = False) -> int:
        # A time computed from a sample may be off by the last bit.
        sample = round(seconds * SAMPLE_RATE, 3)
        find = bisect_left if end else bisect_right
        return max(0, find(self.pieces, sample, key=lambda piece: piece.window) - 1)

    def _file(self, seconds: float, index: int) -> float:
        piece = self.pieces[index]
        inside = min(max(seconds * SAMPLE_RATE - piece.window, 0.0), float(piece.length))
        return (piece.file + inside) / SAMPLE_RATE
