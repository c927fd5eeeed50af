"""A miniature of the GPU's benchmark on the CPU: it keeps the benchmark working until a GPU is available."""

from __future__ import annotations

import os
import subprocess
import sys

PATIENCE_SECONDS = 170
# Runs it as `python -m` does: first unchanged, then as a miniature, in one process.
TWICE = """
import runpy, sys
for arguments in ([], ["--tiny", "--clients", "1,3"]):
    sys.argv[1:] = arguments
    try:
        runpy.run_module("bench.gpt_oss_shape", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        print("ended:", ended, file=sys.stderr)
"""


def test_it_says_that_it_needs_a_gpu_and_measures_a_miniature_on_both_sides() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("ended:") == 1
    assert "ended: bench.gpt_oss_shape needs a CUDA device; --tiny" in done.stderr
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if line[:1] == "|"
    ]
    assert [row[0] for row in rows] == ["clients", "---:", "1", "3"]
    for row in rows[2:]:
        ours, theirs, dense, packed = (float(row[place]) for place in (1, 2, 4, 5))
        assert ours > 0
        assert theirs > 0
        assert packed > dense, "experts in half a byte are read faster than in two"
