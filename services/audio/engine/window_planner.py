"""Cuts a request's sound into windows for the model: by speech, or one after the other as Whisper does.

Sound is held as long as a window may need it, and is addressed by its position in the file.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from services.audio.engine.messages import SAMPLE_RATE, VadOptions
from services.audio.engine.vad import SpeechDetector, SpeechMeter, Stretch, quietest
from services.audio.engine.window import HOP, WINDOW_SAMPLES, Piece, Samples, Window

EDGE = 200  # samples that a column of the spectrogram reads beyond its position
PAUSE = 6 * SAMPLE_RATE // 10  # silence that ends a phrase of a live speaker
SEARCHED = 10 * SAMPLE_RATE  # end of a window that is searched for the quietest position
APART = WINDOW_SAMPLES  # silence that ends a window, so that leaving out silence never makes more windows


class SoundBuffer:
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


class WindowPlanner:
    """The sound of a request, to be cut into windows. The way in which `feed` splits the sound does not change them.

    Use: `feed` sound as it arrives and `end` after the last; then take windows with `ready` until it returns None.
    It holds the sound that a window may still need: 30 s, and sound fed since `ready` last returned None.
    """

    def __init__(self) -> None:
        self._sound = SoundBuffer()
        self._ended = False

    def feed(self, samples: Samples) -> None:
        """Takes the next sound, float32 [n], any n; raises ValueError after the end."""
        if self._ended:
            raise ValueError("the sound has ended")
        self._sound.add(samples)

    def end(self) -> None:
        """Marks the end of the sound."""
        self._ended = True

    @property
    def fed(self) -> int:
        """Samples fed so far."""
        return self._sound.end


class WholeWindowPlanner(WindowPlanner):
    """Windows over every second, as in the reference: 30 s each, from where the text before ended.

    After each window from `ready`, `seek` must set the start of the next one; until then `ready` returns None.
    """

    def __init__(self) -> None:
        super().__init__()
        self._start = 0
        self._taken = 0  # samples of the window that waits for `seek`

    def ready(self) -> Window | None:
        """Returns the next 30 s, or the rest at the end; less than 10 ms are no window."""
        left = self._sound.end - self._start
        # The last columns of the spectrogram read half a frame beyond the window.
        enough = WINDOW_SAMPLES + EDGE if not self._ended else HOP
        if self._taken or left < enough:
            return None
        window = self._window()
        self._taken = len(window.samples)
        return window

    def seek(self, frame: int) -> None:
        """Sets the start of the next window, in columns of 10 ms in the file: after the start of the previous one.

        Raises ValueError if no window is out, or for a position that is neither in it nor at its end.
        """
        sample = frame * HOP
        if not self._start < sample <= self._start + self._taken:
            raise ValueError(f"column {frame} is not in the window before")
        self._start, self._taken = sample, 0
        self._sound.forget(sample - EDGE)

    def open(self) -> Window | None:
        """Returns the sound so far that is in no window yet; None if it is less than 10 ms."""
        if self._taken or self._sound.end - self._start < HOP:
            return None
        return self._window()

    @property
    def done(self) -> bool:
        """True if the sound has ended and no window follows."""
        return self._ended and not self._taken and self._sound.end - self._start < HOP

    @property
    def consumed(self) -> int:
        """Samples that it no longer holds: those before the last position of `seek`."""
        return self._sound.start

    def _window(self) -> Window:
        start, end = self._start, min(self._start + WINDOW_SAMPLES, self._sound.end)
        return Window(
            samples=self._sound.cut(start, end),
            pieces=(Piece(0, start, end - start),),
            last=self._ended and end == self._sound.end,
            before=self._sound.cut(start - EDGE, start),
            after=self._sound.cut(end, end + EDGE),
        )


class SpeechWindowPlanner(WindowPlanner):
    """Windows of speech only: stretches are packed into windows, and the silence between them is left out.

    A window is complete when the next stretch would not fit, when no speech follows for 30 s, at the end of the sound,
    and, if `live`, as soon as the speaker pauses for 0.6 s. A stretch of more than 30 s is cut where it is quietest.
    """

    def __init__(self, options: VadOptions, meter: SpeechMeter, live: bool = False) -> None:
        super().__init__()
        self._meter = meter
        self._detector = SpeechDetector(options)
        self._live = live
        self._margin = options.padding_ms * SAMPLE_RATE // 1000
        self._packed: list[tuple[Stretch, Samples]] = []
        self._length = 0  # packed samples
        self._complete: deque[Window] = deque()
        self._waiting = 0  # samples in complete windows

    def feed(self, samples: Samples) -> None:
        """Takes the next sound; raises ValueError after the end."""
        super().feed(samples)
        for probability in self._meter.feed(samples).tolist():
            self._step(probability)
        self._sound.forget(self._detector.needed)

    def end(self) -> None:
        """Marks the end of the sound and completes the last window."""
        if self._ended:
            return
        for probability in self._meter.end().tolist():
            self._step(probability)
        for stretch in self._detector.end(self._sound.end):
            self._pack(stretch)
        self._ended = True
        self._emit()
        self._sound.forget(self._sound.end)

    def ready(self) -> Window | None:
        """Returns the next complete window."""
        if not self._complete:
            return None
        window = self._complete.popleft()
        self._waiting -= len(window.samples)
        return window

    def open(self) -> Window | None:
        """Returns the packed stretches and the current one; drops the first pieces beyond 30 s."""
        packed = list(self._packed)
        stretch = self._detector.open or self._detector.over
        if stretch:
            stretch = stretch.shortened(WINDOW_SAMPLES)
            packed.append((stretch, self._sound.cut(stretch.start, stretch.end)))
        while sum(len(samples) for _, samples in packed) > WINDOW_SAMPLES:
            del packed[0]
        return self._join(packed) if packed else None

    @property
    def done(self) -> bool:
        """True if the sound has ended and every window was taken."""
        return self._ended and not self._complete

    @property
    def consumed(self) -> int:
        """Samples that it no longer holds, neither as sound nor in windows that wait to be taken."""
        return self._sound.start - self._length - self._waiting

    def _step(self, probability: float) -> None:
        """Processes one frame. Every decision is made here, so the way in which sound is fed does not matter."""
        detector = self._detector
        for stretch in detector.step(probability):
            self._pack(stretch)
        extent = detector.open
        if extent:
            self._make_room(extent)
        elif self._packed:
            silence = detector.silence
            if self._live and silence >= PAUSE:
                for stretch in detector.flush():
                    self._pack(stretch)
                self._emit()
            elif silence >= APART:
                self._emit()

    def _make_room(self, extent: Stretch) -> None:
        """Completes the window if the open stretch no longer fits into it, and cuts a stretch that is too long."""
        if self._packed and self._length + extent.length > WINDOW_SAMPLES:
            self._emit()
        if extent.length > WINDOW_SAMPLES:
            earliest = extent.start + WINDOW_SAMPLES - SEARCHED
            place = earliest + quietest(self._sound.cut(earliest, extent.start + WINDOW_SAMPLES))
            self._pack(self._detector.cut(place))
            self._emit()

    def _pack(self, stretch: Stretch) -> None:
        # Padding may make it longer than detected.
        stretch = stretch.shortened(WINDOW_SAMPLES)
        if self._packed and self._length + stretch.length > WINDOW_SAMPLES:
            self._emit()
        self._packed.append((stretch, self._sound.cut(stretch.start, stretch.end)))
        self._length += stretch.length

    def _emit(self) -> None:
        if self._packed:
            window = self._join(self._packed)
            self._complete.append(window)
            self._waiting += len(window.samples)
            self._packed, self._length = [], 0

    def _join(self, packed: list[tuple[Stretch, Samples]]) -> Window:
        pieces: list[Piece] = []
        length = 0
        for stretch, samples in packed:
            if pieces and pieces[-1].file + pieces[-1].length == stretch.start:
                pieces[-1] = pieces[-1]._replace(length=pieces[-1].length + len(samples))
            else:
                pieces.append(Piece(length, stretch.start, len(samples)))
            length += len(samples)
        return Window(
            samples=np.concatenate([samples for _, samples in packed]),
            pieces=tuple(pieces),
            last=self._ended and packed[-1][0].end == self._sound.end,
            margin=self._margin,
        )
