"""The table that compares the runtime vllm with vLLM's own server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.comparison import Figures
from bench.torch_contender import Server
from bench.vllm_peer import markdown, verdict
from tests.bench.test_torch_peers import entry

FIGURES = Figures(100.0, 100.0, 120.0, 10.0, 12.0, 20.0, 0.0, 5.0, 0.0, 0)


@pytest.mark.parametrize(
    ("speed", "first", "said"),
    [
        (95.0, 115.0, "0.95x"),
        (94.0, 100.0, "0.94x (missed: tokens/s)"),
        (120.0, 115.5, "1.20x (missed: first token)"),
        (50.0, 200.0, "0.50x (missed: tokens/s, first token)"),
    ],
)
def test_missed_targets_are_reported(speed: float, first: float, said: str) -> None:
    ours = replace(FIGURES, tokens_per_s=speed, ttft_p50_ms=first)
    assert verdict(ours, FIGURES) == said


def test_a_row_for_each_with_our_ratio() -> None:
    speeds = {Server.ALLM_VLLM: (90.0, 110.0, 98.0), Server.VLLM: (100.0, 101.0, 99.0)}
    entries = [entry(server, 8, number, speed) for server, each in speeds.items() for number, speed in enumerate(each)]
    ours, theirs = [line for line in markdown(entries).splitlines() if line.startswith("| 8 ")]
    assert ours.startswith("| 8 | allm, runtime vllm | 98.0 | 0.98x ")
    assert theirs.startswith("| 8 | vllm serve | 100.0 |  |")
