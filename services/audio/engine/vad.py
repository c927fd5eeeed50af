"""Voice activity detection: speech probabilities of frames, computed incrementally with the Silero model that the
faster-whisper package carries, and the stretches of speech that they make.

None of the package's code runs: it would also load CTranslate2 and PyAV.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from services.audio.engine.messages import SAMPLE_RATE, VadOptions
from services.audio.engine.window import Samples
from services.worker.messages import EngineError

PACKAGE = "faster_whisper"
FILE = "silero_vad_v6.onnx"
CONTEXT = 64  # preceding samples that the model sees with a frame
STATE = (1, 1, 128)
BATCH = 256  # frames in one call, 8 s: more gains little and takes more memory
FRAME = 512  # samples per probability
SHORTEST = 0  # samples: speech must be longer than this
HYSTERESIS = 0.15  # speech continues until the probability is this far below the threshold
LOWEST = 0.01  # lower bound of that limit


class SpeechMeter:
    """The speech meter of one request. All meters of a process share the model, which runs on one thread.

    It takes about 8 ms for each second of sound.
    """

    def __init__(self) -> None:
        """Loads the model unless another meter has; raises EngineError UNSUPPORTED if it is not installed."""
        self._session = _session()
        self._cell = np.zeros(STATE, dtype=np.float32)
        self._hidden = self._cell
        self._rest: Samples = np.zeros(CONTEXT, dtype=np.float32)  # CONTEXT samples, then less than a frame

    def feed(self, samples: Samples) -> Samples:
        """Takes sound, float32 [n]. Returns the probability of speech in each further frame of FRAME samples."""
        sound = np.concatenate([self._rest, samples], dtype=np.float32)
        frames = (len(sound) - CONTEXT) // FRAME
        self._rest = sound[frames * FRAME :].copy()
        if not frames:
            return np.zeros(0, dtype=np.float32)
        # [frames, CONTEXT + FRAME]: each frame with the end of the previous one
        seen = np.lib.stride_tricks.sliding_window_view(sound, CONTEXT + FRAME)[::FRAME]
        found = [self._measure(seen[first : first + BATCH]) for first in range(0, frames, BATCH)]
        return np.concatenate(found)

    def end(self) -> Samples:
        """Returns the probability of the last frame, padded with silence; none if the sound ended with a frame."""
        left = len(self._rest) - CONTEXT
        return self.feed(np.zeros(FRAME - left if left else 0, dtype=np.float32))

    def _measure(self, frames: Samples) -> Samples:
        state = {"h": self._hidden, "c": self._cell}
        probabilities, self._hidden, self._cell = self._session.run(
            None, {"input": np.ascontiguousarray(frames), **state}
        )
        return np.asarray(probabilities, dtype=np.float32).reshape(-1)


@cache
def _session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(_model()), sess_options=options, providers=["CPUExecutionProvider"])


def _model() -> Path:
    spec = importlib.util.find_spec(PACKAGE)  # imports nothing
    path = Path(spec.origin).parent / "assets" / FILE if spec and spec.origin else None
    if path is None or not path.exists():
        message = "voice activity detection needs the package faster-whisper 1.2, which contains its model"
        raise EngineError("UNSUPPORTED", message)
    return path


class Stretch(NamedTuple):
    """A stretch of speech with the silence kept around it, in samples of the file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Length in samples."""
        return self.end - self.start

    def shortened(self, length: int) -> Stretch:
        """Returns the stretch, cut off after `length` samples."""
        return Stretch(self.start, min(self.end, self.start + length))


class SpeechDetector:
    """A frame-by-frame detector of speech, with the rules of Silero's own code for whole files.

    Speech begins with a frame at the threshold, and ends where frames have been below a lower one for `silence_ms`.
    Stretches get `padding_ms` at both ends, or half of the silence between them if that is less; so they never overlap,
    and a silence shorter than both paddings is kept whole. A stretch is known once its padding is.
    """

    def __init__(self, options: VadOptions) -> None:
        self._threshold = options.threshold
        self._low = max(options.threshold - HYSTERESIS, LOWEST)
        self._silence = options.silence_ms * SAMPLE_RATE // 1000
        self._padding = options.padding_ms * SAMPLE_RATE // 1000
        self.position = 0  # samples seen
        self._start: int | None = None  # of the current speech, without padding
        self._quiet: int | None = None  # start of the silence that may end it
        self._cut = False  # it continues a stretch that was cut
        self._over: Stretch | None = None  # the previous stretch, whose end is not padded yet
        self._last = 0  # end of the last speech, without padding
        self._floor = 0  # end of the previous stretch, with padding: none begins earlier

    def step(self, probability: float) -> list[Stretch]:
        """Takes the next frame. Returns the stretches that are known now, in order."""
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
        """Returns the remaining stretches of a sound of `samples` samples. Current speech lasts to the end."""
        found: list[Stretch] = []
        if self._start is not None:
            self.position, self._quiet = samples, None
            found += [*self._settle(), *self._close(samples)]
        if self._over:
            found.append(self._finish(min(samples, self._over.end + self._padding)))
        return found

    def flush(self) -> list[Stretch]:
        """Returns the ended stretch immediately, with the silence so far; nothing during speech."""
        over = self.over
        return [self._finish(over.end)] if over and self._start is None else []

    def cut(self, place: int) -> Stretch:
        """Ends the open stretch at `place`, where the next one begins; raises ValueError for a place outside it."""
        extent = self.open
        if not extent or not extent.start < place < extent.end:
            raise ValueError(f"no speech goes on at sample {place}")
        self._start, self._cut = place, True
        self._floor = self._last = place
        return Stretch(extent.start, place)

    @property
    def open(self) -> Stretch | None:
        """The current speech: from the padding before it to its last speech frame."""
        if self._start is None or self._over or not self._sure(self._start):
            return None
        return Stretch(self._padded(self._start), self._speech_end())

    @property
    def over(self) -> Stretch | None:
        """The ended stretch that was not returned yet, with the padding so far."""
        if not self._over:
            return None
        return Stretch(self._over.start, min(self.position, self._over.end + self._padding))

    @property
    def silence(self) -> int:
        """Samples since the last speech; 0 during speech."""
        return 0 if self._start is not None else self.position - self._last

    @property
    def needed(self) -> int:
        """The position before which no future stretch has sound."""
        if self._over:
            return self._over.start
        return self._padded(self.position if self._start is None else self._start)

    def _speech_end(self) -> int:
        return self.position if self._quiet is None else self._quiet

    def _sure(self, start: int) -> bool:
        """Returns True if the current speech is long enough to count as speech."""
        return self._cut or self._speech_end() - start > SHORTEST

    def _padded(self, start: int) -> int:
        return max(self._floor, start - self._padding)

    def _settle(self) -> list[Stretch]:
        """Returns the previous stretch once its share of the silence after it is certain."""
        if not self._over:
            return []
        end, start = self._over.end, self._start
        if (self.position if start is None else start) - end >= 2 * self._padding:
            return [self._finish(end + self._padding)]
        if start is not None and self._sure(start):
            return [self._finish(end + (start - end) // 2)]
        return []

    def _finish(self, end: int) -> Stretch:
        """Returns the previous stretch with its padded end."""
        if not self._over:
            raise ValueError("no stretch waits for its padding")
        self._floor = end
        stretch, self._over = Stretch(self._over.start, end), None
        return stretch

    def _close(self, end: int) -> list[Stretch]:
        """Ends the current speech. It becomes the previous stretch unless it is too short to count as speech."""
        start, cut = self._start, self._cut
        self._start = self._quiet = None
        self._cut = False
        if start is None or not (cut or end - start > SHORTEST):
            return []
        self._over = Stretch(self._padded(start), end)
        self._last = end
        return self._settle()


def quietest(samples: Samples) -> int:
    """Returns the middle of the quietest 160 ms of some sound, float32 [n]; the last of several."""
    hop = SAMPLE_RATE // 50
    energy = np.square(samples[: len(samples) // hop * hop].reshape(-1, hop)).sum(axis=1)
    width = 8
    if len(energy) < width:
        return len(samples) // 2
    sums = np.convolve(energy, np.ones(width), mode="valid")
    last = len(sums) - 1 - int(np.argmin(sums[::-1]))
    return (last + width // 2) * hop
