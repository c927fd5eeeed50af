"""Speech probabilities from the Silero model that the faster-whisper package carries, computed incrementally.

None of the package's code runs: it would also load CTranslate2 and PyAV.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime

from services.audio.engine.speech import FRAME
from services.audio.engine.window import Samples
from services.worker.messages import EngineError

PACKAGE = "faster_whisper"
FILE = "silero_vad_v6.onnx"
CONTEXT = 64  # preceding samples that the model sees with a frame
STATE = (1, 1, 128)
BATCH = 256  # frames in one call, 8 s: more gains little and takes more memory


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
        message = "voice activity detection needs faster-whisper 1.2, whose package carries its model; switch it off"
        raise EngineError("UNSUPPORTED", message)
    return path
