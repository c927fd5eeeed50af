"""LlamaIndex's OpenAI client against the real stack; the tests themselves are in llama_index_tests.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack import MODEL, Stack

pytestmark = pytest.mark.slow

CLIENTS = Path(__file__).parent
# A separate environment inside the other; llama-index.txt gives the reason.
PYTHON = Path(sys.prefix) / "llama-index" / "bin" / "python"
SECONDS = 150


def test_llama_index(stack: Stack) -> None:
    assert PYTHON.exists(), "LlamaIndex is missing: make test-all installs it"
    done = subprocess.run(
        [str(PYTHON), "-I", str(CLIENTS / "llama_index_tests.py")],
        cwd=CLIENTS,
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "ALLM_BASE_URL": stack.base_url,
            "ALLM_MODEL": MODEL,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Ran 5 tests" in done.stderr, done.stderr
