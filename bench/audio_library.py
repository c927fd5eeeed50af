"""A transcription library in its own process: `python -m bench.audio_library PLAN`, with a plan as JSON.

The process loads its model, reads `Level` objects from standard input, one JSON line each, and answers each with a
`Timing`. The callers of a level share its clips. A caller is a thread, or a process with its own model.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from multiprocessing import get_context
from typing import Any

import msgspec

from bench.audio_material import RATE, checkpoint, model_folder, recording


class Library(StrEnum):
    """The code under measurement."""

    WHISPER = "whisper"
    FASTER_WHISPER = "WhisperModel"
    BATCHED = "BatchedInferencePipeline"
    ENCODER = "encoder"  # CTranslate2's encoder alone, which every transcription needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A way to load and call a library."""

    library: Library
    threads: int  # compute threads in total
    workers: int = 1  # calls that one model computes at the same time
    processes: int = 1  # each with its own model
    batch: int = 1  # windows computed together
    columns: int = 3000  # of a window, encoder only
    beam_size: int = 5
    compute_type: str = "int8"
    vad: bool = True

    @property
    def name(self) -> str:
        """The name in tables."""
        parts = [str(self.library)]
        if self.library in (Library.BATCHED, Library.ENCODER):
            parts.append(f"batch {self.batch}")
        if self.library is Library.ENCODER:
            parts.append(f"{self.columns // 100} s")
        split = self.workers * self.processes
        parts.append(f"{self.threads // split} threads")
        if self.processes > 1:
            parts.append(f"{self.processes} processes")
        if self.workers > 1:
            parts.append(f"{self.workers} workers")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Level:
    """The clips to transcribe and the number of callers."""

    clients: int
    clips: Sequence[int]


@dataclass(frozen=True, slots=True)
class Timing:
    """The times and texts of a level."""

    wall_s: float
    latencies_s: Sequence[float]  # of each clip
    texts: Sequence[str]  # of each clip, in the order of the level


Transcribe = Callable[[int], str]


_loaded: list[Transcribe] = []  # the model of this process


def load(plan: Plan) -> Transcribe:
    """Loads a library; returns a function from a clip's number to its text."""
    make = {Library.WHISPER: _whisper, Library.ENCODER: _encoder}.get(plan.library, _faster_whisper)
    return make(plan)


def _threads(plan: Plan) -> int:
    return max(1, plan.threads // (plan.workers * plan.processes))


def _whisper(plan: Plan) -> Transcribe:
    import torch  # noqa: PLC0415 - each process loads what it measures
    import whisper  # noqa: PLC0415

    # whisper's own way to decode starts the program ffmpeg
    from faster_whisper.audio import decode_audio  # type: ignore[import-untyped]  # noqa: PLC0415

    torch.set_num_threads(_threads(plan))
    model = whisper.load_model(str(checkpoint()), device="cpu")

    def transcribe(number: int) -> str:
        sound = decode_audio(io.BytesIO(recording(number).content))
        found = model.transcribe(
            sound, beam_size=plan.beam_size, best_of=5, fp16=False, condition_on_previous_text=not plan.vad
        )
        return str(found["text"])

    return transcribe


def _faster_whisper(plan: Plan) -> Transcribe:
    from faster_whisper import BatchedInferencePipeline, WhisperModel  # type: ignore[import-untyped]  # noqa: PLC0415

    model = WhisperModel(
        str(model_folder()),
        device="cpu",
        compute_type=plan.compute_type,
        cpu_threads=_threads(plan),
        num_workers=plan.workers,
    )
    call: Callable[..., Any] = partial(model.transcribe, condition_on_previous_text=not plan.vad)
    if plan.library is Library.BATCHED:
        call = partial(BatchedInferencePipeline(model).transcribe, batch_size=plan.batch)

    def transcribe(number: int) -> str:
        clip = recording(number)
        extra: dict[str, Any] = {}
        if plan.library is Library.BATCHED and not plan.vad:  # the pipeline needs explicit cuts without VAD
            cuts = range(0, int(clip.seconds) + 1, 30)
            extra["clip_timestamps"] = [{"start": at, "end": min(at + 30, clip.seconds)} for at in cuts]
        segments, _ = call(io.BytesIO(clip.content), beam_size=plan.beam_size, vad_filter=plan.vad, **extra)
        return "".join(segment.text for segment in segments)

    return transcribe


def _encoder(plan: Plan) -> Transcribe:
    """Returns a function that encodes the same batch of windows for any clip."""
    import ctranslate2  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    from faster_whisper.audio import decode_audio  # noqa: PLC0415
    from faster_whisper.feature_extractor import FeatureExtractor  # type: ignore[import-untyped]  # noqa: PLC0415

    model = ctranslate2.models.Whisper(
        str(model_folder()),
        device="cpu",
        compute_type=plan.compute_type,
        intra_threads=_threads(plan),
        inter_threads=plan.workers,
    )
    sound = decode_audio(io.BytesIO(recording(0).content))
    sound = np.concatenate([sound, np.zeros(30 * RATE, dtype=np.float32)])[: 30 * RATE]
    mel = FeatureExtractor()(sound)[:, : plan.columns].astype(np.float32)
    view = ctranslate2.StorageView.from_array(np.ascontiguousarray(np.stack([mel] * plan.batch)))

    def transcribe(number: int) -> str:
        model.encode(view)
        return str(number)

    return transcribe


def _begin(plan: Plan) -> None:
    """Loads the model of this process and warms it up."""
    _loaded.append(load(plan))
    _loaded[0](0)


def _timed(number: int) -> tuple[float, str]:
    started = time.perf_counter()
    text = _loaded[0](number)
    return time.perf_counter() - started, text


def _measure(pool: Executor, clips: Sequence[int]) -> Timing:
    started = time.perf_counter()
    answers = list(pool.map(_timed, clips))
    wall = time.perf_counter() - started
    return Timing(wall, [seconds for seconds, _ in answers], [text for _, text in answers])


def main() -> None:
    """Loads the model, prints an empty line when it is ready, and measures each level that it reads."""
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    os.environ["OMP_NUM_THREADS"] = str(_threads(plan))
    processes: ProcessPoolExecutor | None = None
    if plan.processes > 1:
        processes = ProcessPoolExecutor(plan.processes, get_context("spawn"), _begin, (plan,))
        list(processes.map(_timed, range(2 * plan.processes)))
    else:
        _begin(plan)
    print(flush=True)
    for line in sys.stdin:
        level = msgspec.json.decode(line, type=Level)
        if processes and level.clients > 1:
            timing = _measure(processes, level.clips)
        elif processes:
            timing = Timing(0.0, [], [])  # another plan measures a single caller
        else:
            # openai-whisper's model holds the state of one call at a time.
            callers = 1 if plan.library is Library.WHISPER else level.clients
            with ThreadPoolExecutor(callers) as pool:
                timing = _measure(pool, level.clips)
        print(msgspec.json.encode(timing).decode(), flush=True)
    if processes:
        processes.shutdown()


if __name__ == "__main__":
    main()
