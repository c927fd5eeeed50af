"""The table of the comparison of image generation: ratios within a round, CPU time, and missed targets."""

from __future__ import annotations

import pytest

from bench.image_pipeline import Level, Plan, Timing, prompt_of
from bench.image_result import OURS, Entry, difference, markdown, ratios
from bench.noise import Noise

PLAN = Plan(threads=2, steps=20, guidance=2.5)
LOOP = PLAN.name


def entry(name: str, number: int, clients: int, wall_s: float, cpu_s: float) -> Entry:
    """A turn of eight images."""
    level = Level(clients, list(range(8)))
    timing = Timing(wall_s, [wall_s / 8] * 8, [b""] * 8)
    noise = Noise(steal_percent=1, other_percent=2, client_cpu_s=0, server_cpu_s=cpu_s)
    return Entry.of(name, number, level, timing, noise)


def turns(clients: int, ours: list[float], loop: list[float]) -> list[Entry]:
    """Returns a round for each pair of times; allm takes half of the loop's CPU time."""
    pairs = enumerate(zip(ours, loop, strict=True))
    return [
        each
        for number, (a, b) in pairs
        for each in (entry(OURS, number, clients, a, 4.0), entry(LOOP, number, clients, b, 8.0))
    ]


def test_the_ratio_is_the_median_of_the_rounds_and_not_that_of_the_medians() -> None:
    entries = turns(4, ours=[1.0, 10.0, 3.0], loop=[2.0, 15.0, 3.0])
    assert ratios(entries, 4, LOOP) == (pytest.approx(1.5), pytest.approx(2.0))


def test_ratios_use_only_common_rounds() -> None:
    whole = "the pipeline with 4 prompts"
    entries = [*turns(4, ours=[1.0, 2.0], loop=[2.0, 2.0]), entry(whole, 1, 4, 1.0, 2.0)]
    assert ratios(entries, 4, whole) == (pytest.approx(0.5), pytest.approx(0.5))


def test_only_a_missed_target_is_reported() -> None:
    entries = [*turns(1, ours=[2.0], loop=[1.0]), *turns(4, ours=[1.0], loop=[2.0])]
    missed, met = [line for line in markdown(entries, PLAN, {1: 0, 4: 1}).splitlines() if LOOP in line and "|" in line]
    assert "0.50x (2.00x) (target 0.95x)" in missed
    assert "2.00x (2.00x) |" in met
    assert "target" not in met


def test_the_table_shows_the_distance_from_the_loops_pictures() -> None:
    text = markdown(turns(1, ours=[1.0], loop=[1.0]), PLAN, {1: 0, 16: 2})
    assert "0 with 1, 2 with 16 clients" in text


def test_pictures_are_compared_up_to_the_shorter_run() -> None:
    one = Timing(1.0, [1.0] * 3, [b"\x00\x10", b"\xff\x00", b"\x55\x55"])
    other = Timing(1.0, [1.0] * 2, [b"\x00\x12", b"\xfe\x00"])
    assert difference(one, other) == 2
    assert difference(one, one) == 0


def test_prompts_differ_by_seed() -> None:
    assert len({prompt_of(seed) for seed in range(16)}) == 16
    assert prompt_of(3) == prompt_of(19)
