"""Where in a sound there is speech: how likely each frame is speech, in order; stretches of speech out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.audio.engine.messages import SAMPLE_RATE, VadOptions
from services.audio.engine.window import Samples

FRAME = 512  # samples that one probability stands for
SHORTEST = 0  # samples: speech that is not longer is none
HYSTERESIS = 0.15  # speech goes on until the probability is so far below the threshold
LOWEST = 0.01  # but at least so much


class Stretch(NamedTuple):
    """A stretch of speech with the silence around it that is kept. In samples of the file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Samples."""
        return self.end - self.start

    def shortened(self, length: int) -> Stretch:
        """The same, without what is beyond a length."""
        return Stretch(self.start, min(self.end, self.start + length))


class SpeechDetector:
    """Finds stretches of speech, frame by frame, as Silero's own code does for a whole file.

    Speech begins with a frame at the threshold, and ends where frames have been below a lower one for `silence_ms`.
    Stretches get `padding_ms` at both ends, or half of the silence between them where that is less; so they never
    overlap, and with a silence shorter than both paddings nothing is lost. A stretch is known once its padding is.
    """

    def __init__(self, options: VadOptions) -> None:
        self._threshold = options.threshold
        self._low = max(options.threshold - HYSTERESIS, LOWEST)
        self._silence = options.silence_ms * SAMPLE_RATE // 1000
        self._padding = options.padding_ms * SAMPLE_RATE // 1000
        self.position = 0  # samples seen
        self._start: int | None = None  # of the speech that goes on, without padding
        self._quiet: int | None = None  # since when it may be over
        self._cut = False  # whether it goes on from a stretch that was cut
        self._over: Stretch | None = None  # the stretch before, whose end is not padded yet
        self._last = 0  # where the last speech ended, without padding
        self._floor = 0  # where the stretch before ends, with padding: none begins earlier

    def step(self, probability: float) -> list[Stretch]:
        """Takes the next frame; gives the stretches that are known now, in order."""
        here = self.position
        self.position += FRAME
        if probability >= self._threshold:
            self._quiet = None
            if self._start is None:
                self._start = here
        elif probability < self._low and self._start is not None:
            if self._quiet is None:
                self._quiet = here
            if here - self._quiet >= self._silence:
                return [*self._settle(), *self._close(self._quiet)]
        return self._settle()

    def end(self, samples: int) -> list[Stretch]:
        """The stretches that are left of a sound of so many samples. Speech that goes on lasts to the end."""
        found: list[Stretch] = []
        if self._start is not None:
            self.position, self._quiet = samples, None
            found += [*self._settle(), *self._close(samples)]
        if self._over:
            found.append(self._finish(min(samples, self._over.end + self._padding)))
        return found

    def flush(self) -> list[Stretch]:
        """Gives the stretch that is over at once, with the silence there is; nothing while somebody speaks."""
        over = self.over
        return [self._finish(over.end)] if over and self._start is None else []

    def cut(self, place: int) -> Stretch:
        """Ends the open stretch at a place in it, where the next one begins; ValueError where there is none."""
        extent = self.open
        if not extent or not extent.start < place < extent.end:
            raise ValueError(f"no speech goes on at sample {place}")
        self._start, self._cut = place, True
        self._floor = self._last = place
        return Stretch(extent.start, place)

    @property
    def open(self) -> Stretch | None:
        """The speech that goes on: from the padding before it to where it was last heard."""
        if self._start is None or self._over or not self._sure(self._start):
            return None
        return Stretch(self._padded(self._start), self._heard())

    @property
    def over(self) -> Stretch | None:
        """The stretch that is over but not given yet, with the padding there is."""
        if not self._over:
            return None
        return Stretch(self._over.start, min(self.position, self._over.end + self._padding))

    @property
    def silence(self) -> int:
        """Samples since speech was last heard; 0 while it goes on."""
        return 0 if self._start is not None else self.position - self._last

    @property
    def needed(self) -> int:
        """Sound before this place is in no stretch that is still to come."""
        if self._over:
            return self._over.start
        return self._padded(self.position if self._start is None else self._start)

    def _heard(self) -> int:
        return self.position if self._quiet is None else self._quiet

    def _sure(self, start: int) -> bool:
        """Whether the speech that goes on has lasted long enough to be speech."""
        return self._cut or self._heard() - start > SHORTEST

    def _padded(self, start: int) -> int:
        return max(self._floor, start - self._padding)

    def _settle(self) -> list[Stretch]:
        """The stretch before, once it is sure how much of the silence behind it the next one leaves it."""
        if not self._over:
            return []
        end, start = self._over.end, self._start
        if (self.position if start is None else start) - end >= 2 * self._padding:
            return [self._finish(end + self._padding)]
        if start is not None and self._sure(start):
            return [self._finish(end + (start - end) // 2)]
        return []

    def _finish(self, end: int) -> Stretch:
        """The stretch before, ending with its padding."""
        if not self._over:
            raise ValueError("no stretch waits for its padding")
        self._floor = end
        stretch, self._over = Stretch(self._over.start, end), None
        return stretch

    def _close(self, end: int) -> list[Stretch]:
        """Ends the speech that goes on. The one before it is settled unless this one is too short to be speech."""
        start, cut = self._start, self._cut
        self._start = self._quiet = None
        self._cut = False
        if start is None or not (cut or end - start > SHORTEST):
            return []
        self._over = Stretch(self._padded(start), end)
        self._last = end
        return self._settle()


def quietest(samples: Samples) -> int:
    """The middle of the quietest 160 ms of some sound, float32 [n]; the last of several."""
    hop = SAMPLE_RATE // 50
    energy = np.square(samples[: len(samples) // hop * hop].reshape(-1, hop)).sum(axis=1)
    width = 8
    if len(energy) < width:
        return len(samples) // 2
    sums = np.convolve(energy, np.ones(width), mode="valid")
    last = len(sums) - 1 - int(np.argmin(sums[::-1]))
    return (last + width // 2) * hop
