"""The `faster_whisper` runtime: Whisper models of CTranslate2, and others after conversion."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from services.audio.engine.messages import EngineOptions, WhisperReady
from services.audio.engine.runtime import TOKEN_SECONDS, Aligned, Decoded, Floats, Step, in_groups, padded_parts
from services.audio.engine.vocabulary import converted_vocabulary
from services.worker.messages import EngineError, error_line, is_out_of_memory

CONTEXT = 448  # tokens of prompt and text; the same for all Whisper models, and not stored in a converted one
# Text tokens aligned in one call, which makes logits of the whole vocabulary for each.
ALIGNED_TOKENS = 128
_MODEL = "model.bin"


@dataclass(frozen=True, slots=True)
class EncodedWindow:
    """One row of an encoded batch of windows."""

    batch: Any  # StorageView [windows, length, state]
    row: int

    @property
    def length(self) -> int:
        """Positions: one for every two columns of the mel spectrogram."""
        return int(self.batch.shape[1])


class FasterWhisper:
    """A loaded model. Any thread may call it; `lanes` calls run in parallel, others wait."""

    context_tokens = CONTEXT
    shortest_frames = 1

    def __init__(self, options: EngineOptions, progress: Callable[[float], None]) -> None:
        """Loads the model; converts it first if it is not in CTranslate2's format and not converted yet.

        Raises:
            EngineError: MODEL_INVALID, UNSUPPORTED or OUT_OF_MEMORY; the message names the cause.
        """
        folder = _converted_folder(options, progress)
        self.vocabulary = converted_vocabulary(folder)
        self.lanes = options.lanes((folder / _MODEL).stat().st_size)
        self._model = _load(folder, options, self.lanes)
        self.n_mels = int(self._model.n_mels)
        self._source = folder
        if self._model.is_multilingual != self.vocabulary.multilingual:
            raise EngineError("MODEL_INVALID", f"{folder / _MODEL} does not match the vocabulary in its folder")
        self.ready = WhisperReady(
            languages=self.vocabulary.languages,
            multilingual=self.vocabulary.multilingual,
            batch_windows=options.most_windows,
        )
        self.encode_windows = self.ready.batch_windows if options.gpu else 1
        progress(1.0)

    def encode(self, mels: Floats) -> list[EncodedWindow]:
        """Returns handles of windows, one for each of `mels` [windows, n_mels, frames]."""
        with _faults():
            batch = self._model.encode(_view(mels))
        return [EncodedWindow(batch, row) for row in range(len(mels))]

    def detect(self, windows: Sequence[EncodedWindow]) -> list[tuple[str, float]]:
        """Returns the likeliest language of each window and its probability."""

        def compute(members: list[int]) -> Iterable[tuple[str, float]]:
            with _faults():
                found = self._model.detect_language(_joined([windows[index] for index in members]))
            return [(best[0][0].strip("<|>"), float(best[0][1])) for best in found]

        return in_groups((window.length for window in windows), compute)

    def decode(self, windows: Sequence[EncodedWindow], prompts: Sequence[Sequence[int]], step: Step) -> list[Decoded]:
        """Decodes windows, batched by window length and by prompt shape as CTranslate2 requires."""

        def compute(members: list[int]) -> Iterable[Decoded]:
            return self._generate([windows[index] for index in members], [prompts[index] for index in members], step)

        shapes = ((window.length, self._shape(prompt)) for window, prompt in zip(windows, prompts, strict=True))
        return in_groups(shapes, compute)

    def align(
        self,
        windows: Sequence[EncodedWindow],
        starts: Sequence[Sequence[int]],
        texts: Sequence[Sequence[int]],
        frames: Sequence[int],
    ) -> list[Aligned]:
        """Aligns each window's text with its sound. Windows of equal length, language and task share a call, within the
        memory that services/audio/memory_estimate.py assumes.
        """
        lengths = [len(text) for text in texts]

        def compute(members: list[int]) -> Iterable[Aligned]:
            with _faults():
                results = self._model.align(
                    _joined([windows[index] for index in members]),
                    list(starts[members[0]]),
                    [list(texts[index]) for index in members],
                    [int(frames[index]) for index in members],
                )
            return map(_aligned, results)

        def parts(members: list[int]) -> Iterable[list[int]]:
            return padded_parts(members, lengths, ALIGNED_TOKENS)

        return in_groups(
            ((window.length, *start) for window, start in zip(windows, starts, strict=True)), compute, parts
        )

    def _shape(self, prompt: Sequence[int]) -> Hashable:
        """Returns the key of a batch: position of the transcript's start, prompt length, timestamps or none."""
        return prompt.index(self.vocabulary.sot), len(prompt), prompt[-1] == self.vocabulary.no_timestamps

    def _generate(
        self, windows: Sequence[EncodedWindow], prompts: Sequence[Sequence[int]], step: Step
    ) -> Iterable[Decoded]:
        # The library counts the prompt without its last token, and allows an answer only half of `max_length`.
        before = len(prompts[0]) - 1
        wanted = max(1, min(step.max_tokens, CONTEXT - before))
        search: dict[str, Any] = {"beam_size": step.beam_size, "patience": 1.0}
        if step.temperature > 0:
            # Samples are not reproducible: the library seeds its threads once, and `step.seed` comes too late.
            search = {"beam_size": 1, "num_hypotheses": step.best_of, "sampling_topk": 0}
            search["sampling_temperature"] = step.temperature
        with _faults():
            results = self._model.generate(
                _joined(windows),
                [list(prompt) for prompt in prompts],
                max_length=max(2 * wanted, wanted + before),
                return_scores=True,
                return_no_speech_prob=True,
                suppress_blank=True,
                suppress_tokens=list(self.vocabulary.suppressed),
                max_initial_timestamp_index=round(step.max_initial_timestamp / TOKEN_SECONDS),
                **search,
            )
        return map(_decoded, results)


def _decoded(result: Any) -> Decoded:
    tokens = list(result.sequences_ids[0])
    # The score is the sum of logprobs, the end's included, divided by the number of tokens without the end.
    avg_logprob = float(result.scores[0]) * len(tokens) / (len(tokens) + 1)
    return Decoded(tokens, avg_logprob, float(result.no_speech_prob))


def _aligned(result: Any) -> Aligned:
    path = np.asarray(result.alignments, dtype=np.int64).reshape(-1, 2)
    return Aligned(path[:, 0], path[:, 1], np.asarray(result.text_token_probs, dtype=np.float32))


def _view(array: Floats) -> Any:
    return ctranslate2.StorageView.from_array(np.ascontiguousarray(array))


def _joined(windows: Sequence[EncodedWindow]) -> Any:
    """Returns one storage of all the windows: their own if they are exactly one batch, else a copy."""
    batch = windows[0].batch
    together = all(window.batch is batch and window.row == row for row, window in enumerate(windows))
    if together and len(windows) == batch.shape[0]:
        return batch
    on_cpu: dict[int, Floats] = {}
    rows = [_on_cpu(window.batch, on_cpu)[window.row] for window in windows]
    return _view(np.stack(rows))


def _on_cpu(batch: Any, known: dict[int, Floats]) -> Floats:
    """Returns a batch as an array, which shares its memory if that is float32 on a CPU."""
    found = known.get(id(batch))
    if found is None:
        on_cpu = batch if batch.device == "cpu" else batch.to_device(ctranslate2.Device.cpu)
        found = known[id(batch)] = np.asarray(on_cpu.to(ctranslate2.DataType.float32))
    return found


def _converted_folder(options: EngineOptions, progress: Callable[[float], None]) -> Path:
    path = Path(options.path)
    if path.is_dir() and (path / _MODEL).is_file():
        return path
    try:
        from services.audio.engine.runtimes.conversion import convert  # noqa: PLC0415 - torch only where it is needed
    except ModuleNotFoundError as error:
        message = (
            f"{path} must be converted to CTranslate2 first, but the Python package {error.name!r}, which this needs, "
            "is not installed"
        )
        raise EngineError("UNSUPPORTED", message) from error
    folder: Path = convert(path, options.cache_folder, progress)
    return folder


def _load(folder: Path, options: EngineOptions, calls: int) -> Any:
    device = "cuda" if options.gpu else "cpu"
    compute_type = _compute_type(options, device)
    logging.getLogger("ctranslate2").setLevel(logging.ERROR)
    try:
        return ctranslate2.models.Whisper(
            str(folder),
            device=device,
            compute_type=compute_type,
            inter_threads=calls,
            intra_threads=max(1, options.threads // calls),
        )
    except (MemoryError, RuntimeError, ValueError) as error:
        text = error_line(error)
        if is_out_of_memory(error):
            raise EngineError("OUT_OF_MEMORY", f"the weights of {folder} do not fit: {text}") from error
        if "compute type" in text or "CUDA" in text:
            raise EngineError("UNSUPPORTED", f"{folder} cannot run on {device} in {compute_type}: {text}") from error
        raise EngineError("MODEL_INVALID", f"{folder / _MODEL} cannot be loaded: {text}") from error


def _compute_type(options: EngineOptions, device: str) -> str:
    """Returns the compute type; `auto` is 16 bits on a GPU, 8 bits for the weights on a CPU.

    On 80 clips of 1408 words (one thread, beam search) 8 bits took 0.4 of the processor time of 32 and made about as
    many errors: 3.7 % of the words instead of 3.3 (tiny.en), 3.1 instead of 3.3 (base).
    """
    known = sorted(ctranslate2.get_supported_compute_types(device)) if device == "cpu" or _has_gpu() else []
    if not known:
        raise EngineError("UNSUPPORTED", "a GPU is requested, but CTranslate2 finds no usable one")
    if options.compute_type == "auto":
        wanted = ("float16", "bfloat16", "float32") if device == "cuda" else ("int8", "float32")
        return next(name for name in wanted if name in known)
    if options.compute_type not in known:
        message = (
            f"ALLM_AUDIO_COMPUTE_TYPE={options.compute_type}: on this {device}, CTranslate2 supports {', '.join(known)}"
        )
        raise EngineError("UNSUPPORTED", message)
    return options.compute_type


def _has_gpu() -> bool:
    try:
        return bool(ctranslate2.get_cuda_device_count() > 0)
    except RuntimeError:  # no driver, or one that is too old
        return False


@contextmanager
def _faults() -> Iterator[None]:
    """Converts the library's errors in a batch into EngineError."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        text = error_line(error)
        raise EngineError("OUT_OF_MEMORY" if is_out_of_memory(error) else "INTERNAL", f"CTranslate2: {text}") from error
