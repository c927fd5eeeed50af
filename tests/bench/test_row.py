"""Rows beside their peers: which bars hold, by how much others are missed, and the page of them."""

from __future__ import annotations

from dataclasses import replace

from bench import page
from bench.row import Row, table

SPEED = Row("Q4_1, 8 clients", "tokens/s", 180.0, 200.0, "llama-server", 1.0)
GAP = Row("Q4_1, 8 clients", "gap p95, ms", 24.0, 10.0, "its median", 3.0, at_most=True)


def test_a_speed_has_a_lowest_ratio_and_a_time_a_highest() -> None:
    assert (SPEED.holds, SPEED.miss) == (False, "10%")
    assert (replace(SPEED, ours=200.0).holds, GAP.holds, GAP.miss) == (True, True, "")
    assert (replace(GAP, ours=45.0).holds, replace(GAP, ours=45.0).miss) == (False, "50%")
    assert not replace(SPEED, peer=0.0).holds, "a peer without a figure proves nothing"


def test_the_table_shows_figures_ratio_and_bar() -> None:
    speed, gap = table([SPEED, GAP]).splitlines()[2:]
    assert speed == "| Q4_1, 8 clients | tokens/s | 180 | 200 | llama-server | 0.90 | at least 1 | 10% |"
    assert gap == "| Q4_1, 8 clients | gap p95, ms | 24 | 10 | its median | 2.40 | at most 3 |  |"


def test_only_missed_bars_are_explained() -> None:
    missed = page.page({"text": [SPEED, GAP]}, 3)
    assert "## Text: 1 of 2 bars hold" in missed
    assert "Where the time goes, text: Q4_1" in missed
    assert "Where the time goes" not in page.page({"text": [GAP]}, 3)
