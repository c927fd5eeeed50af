"""Estimates the memory of a Whisper model before it is loaded, from its files' headers and the settings.

    weights + rows x (1500 x 2 x layers x width x b + 1500 x width x b) + rows x beams x 128 x 2 x layers x width x b
            + 400 x 51864 (tokenizer) + 16 MiB (voice activity detection)
            + (lanes - 1) x 1500 x 1500 x width / 64 x b (attention of the encoder)

`rows` are the windows of a batch, which have at most 1500 positions; the terms are the keys and values of cross
attention, the encoder's output, and the keys and values of each beam's text, estimated at 128 tokens: most windows
have fewer. Words are aligned by a lane that does not decode then, with so few tokens at a time that alignment takes
less than that. `b` is 4 on a CPU, 2 on a GPU. Fitted to the peak of whisper-tiny.en above a worker that has only
imported its runtime; that base is `worker`. Sizes: Whisper's paper, table 1, for checkpoints whose header has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from services.audio.engine.messages import EngineOptions
from services.models.descriptor import ModelDescriptor
from services.models.formats.document import known_object
from services.models.formats.whisper import read_shapes
from services.models.runtimes import RuntimeSpec
from services.residency.memory.memory_estimate import MemoryEstimate, gpu_of
from services.settings.modality_settings import MIB, AudioSettings

WORKER_BYTES: Mapping[str, int] = {"faster_whisper": 62 * MIB, "whisper": 420 * MIB}
GPU_CONTEXT = 500 * MIB  # of CTranslate2
_MODEL = "model.bin"
_NORM = re.compile(r"decoder/layer_\d+/self_attention/layer_norm/beta")  # one for each layer, as long as its width
_POSITIONS = 1500
_TEXT = 128
_VOCABULARY = 51_864
_VAD = 16 * MIB
# Most parameters of a tiny, base, small, medium, large checkpoint: (layers, width)
_SIZES = ((50e6, (4, 384)), (110e6, (6, 512)), (400e6, (12, 768)), (1000e6, (24, 1024)), (math.inf, (32, 1280)))


class AudioMemoryEstimate:
    """The memory estimate of one service. `options` returns the manager's options of a model."""

    def __init__(
        self, settings: AudioSettings, options: Callable[[ModelDescriptor, RuntimeSpec], EngineOptions]
    ) -> None:
        self._settings = settings
        self._options = options

    def __call__(self, descriptor: ModelDescriptor, runtime: RuntimeSpec) -> MemoryEstimate:
        """Returns the peak memory of a model. Reads headers only.

        Raises:
            AllmError, OSError, LookupError, ValueError: a header cannot be read.
        """
        options = self._options(descriptor, runtime)
        numbers, layers, width = _sizes(descriptor)
        number = 2 if options.gpu else 4
        rows = options.most_windows
        layer = 2 * layers * width * number
        lanes = options.lanes(descriptor.size) if runtime.name == "faster_whisper" else 1
        parts = {
            "weights": int(numbers * _weight_bytes(options, runtime)),
            "cache": rows * (_POSITIONS + self._settings.beam_size * _TEXT) * layer,
            "compute": rows * _POSITIONS * width * number,
        }
        parts["compute"] += (lanes - 1) * _POSITIONS**2 * width // 64 * number
        worker = WORKER_BYTES.get(runtime.name, WORKER_BYTES["whisper"])
        aside = 400 * _VOCABULARY + _VAD
        if gpu_of(runtime):
            parts["compute"] += GPU_CONTEXT
            return MemoryEstimate.of(parts, {"worker": worker + aside}, runtime)
        parts["compute"] += aside
        return MemoryEstimate.of(parts, {"worker": worker}, runtime)


def _weight_bytes(options: EngineOptions, runtime: RuntimeSpec) -> float:
    """Returns the bytes of one weight in memory; for 8 bits a little more, because of the scales."""
    if runtime.name != "faster_whisper":
        return 2.0 if options.gpu else 4.0
    wanted = options.compute_type
    if wanted == "auto":
        wanted = "float16" if options.gpu else "int8"
    return 1.05 if wanted.startswith("int8") else 4.0 if wanted == "float32" else 2.0


def _sizes(descriptor: ModelDescriptor) -> tuple[int, int, int]:
    """Returns the number of weights, the decoder's layers, and its width."""
    folder = descriptor.primary
    if (folder / _MODEL).is_file():
        shapes = read_shapes(folder / _MODEL)
        norms = [shape for name, shape in shapes.items() if _NORM.fullmatch(name)]
        if norms:
            return sum(math.prod(shape) for shape in shapes.values()), len(norms), norms[0][0]
    if (folder / "config.json").is_file():
        return _by_config(descriptor, folder)
    numbers = descriptor.size // 2  # OpenAI's checkpoints have 16 bits
    return numbers, *next(sizes for most, sizes in _SIZES if numbers <= most)


def _by_config(descriptor: ModelDescriptor, folder: Path) -> tuple[int, int, int]:
    config = known_object(folder / "config.json")
    stored = 2 if config.get("torch_dtype", config.get("dtype")) in ("float16", "bfloat16") else 4
    return descriptor.size // stored, int(config["decoder_layers"]), int(config["d_model"])
