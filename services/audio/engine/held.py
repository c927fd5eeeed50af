"""Sound that is held as long as a window may need it, addressed by its position in the file."""

from __future__ import annotations

import numpy as np

from services.audio.engine.window import Samples


class HeldSound:
    """A stretch of the file's sound that grows at its end and is dropped from its start. Positions are in samples."""

    __slots__ = ("_buffer", "_first", "end", "start")

    def __init__(self) -> None:
        self.start = 0  # position in the file of the first sample held
        self.end = 0  # position after the last one
        self._buffer = np.empty(0, dtype=np.float32)
        self._first = 0  # index of `start` in the buffer

    def add(self, samples: Samples) -> None:
        """Appends sound, float32 [n]."""
        held = self.end - self.start
        if self._first + held + len(samples) > len(self._buffer):
            # Twice the needed size: copying then costs no more than appending, and memory follows the held sound.
            grown = np.empty(2 * (held + len(samples)), dtype=np.float32)
            grown[:held] = self._buffer[self._first : self._first + held]
            self._buffer, self._first = grown, 0
        self._buffer[self._first + held : self._first + held + len(samples)] = samples
        self.end += len(samples)

    def cut(self, start: int, end: int) -> Samples:
        """Returns a copy of the sound from `start` to `end`, limited to the held part."""
        start, end = max(start, self.start), min(end, self.end)
        offset = self._first - self.start
        return self._buffer[start + offset : max(start, end) + offset].copy()

    def forget(self, before: int) -> None:
        """Drops the sound before a position in the file."""
        before = min(before, self.end)
        if before > self.start:
            self._first += before - self.start
            self.start = before
