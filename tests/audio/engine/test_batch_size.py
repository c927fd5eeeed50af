"""The number of model calls that run at the same time."""

from __future__ import annotations

from services.audio.engine.batch_size import SMALL_BYTES, lane_count
from tests.case import case


def test_calls_of_a_small_model_share_out_the_threads() -> None:
    for threads, lanes in [(0, 1), (1, 1), (2, 2), (4, 2), (7, 2), (8, 4), (64, 4)]:
        with case(threads=threads, lanes=lanes):
            assert lane_count(SMALL_BYTES, threads, gpu=False) == lanes


def test_a_large_model_and_a_gpu_compute_one_call_with_all_they_have() -> None:
    assert lane_count(SMALL_BYTES + 1, 16, gpu=False) == lane_count(1000, 16, gpu=True) == 1
