"""The GPU's benchmark, as a miniature on the processor: it must still run on the day when a GPU is at hand."""

from __future__ import annotations

import os
import subprocess
import sys

PATIENCE_SECONDS = 170


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.gpt_oss_shape", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )


def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert done.returncode == 1
    assert "needs a CUDA device; --tiny" in done.stderr


def test_the_miniature_is_made_and_measured_on_both_sides() -> None:
    done = run("--tiny", "--clients", "1,3")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if line[:1] == "|"
    ]
    assert [row[0] for row in rows] == ["clients", "---:", "1", "3"]
    for row in rows[2:]:
        ours, theirs, dense, packed = (float(row[place]) for place in (1, 2, 4, 5))
        assert ours > 0
        assert theirs > 0
        assert packed > dense, "experts in half a byte are read faster than in two"
