"""The number of model calls that run at the same time."""

from __future__ import annotations

from services.audio.engine.messages import SMALL_BYTES, EngineOptions
from tests.case import case


def options(threads: int, *, gpu: bool = False) -> EngineOptions:
    return EngineOptions(model_id="tiny", path="", threads=threads, gpu=gpu)


def test_calls_of_a_small_model_share_out_the_threads() -> None:
    for threads, lanes in [(0, 1), (1, 1), (2, 2), (4, 2), (7, 2), (8, 4), (64, 4)]:
        with case(threads=threads, lanes=lanes):
            assert options(threads).lanes(SMALL_BYTES) == lanes


def test_a_large_model_and_a_gpu_compute_one_call_with_all_they_have() -> None:
    assert options(16).lanes(SMALL_BYTES + 1) == options(16, gpu=True).lanes(1000) == 1
