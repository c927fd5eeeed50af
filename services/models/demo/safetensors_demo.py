"""The demo model as safetensors, for the runtime torch: unpacked once from the bundled GGUF file.

Unpacking takes some seconds and 270 MB. It runs in a separate process (`services.models.demo.dequantize`), which may be
killed at any time: the folder appears under its name only when it is complete.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from services.models.demo.text_demo import BUNDLED_SHA256, DemoError, bundled_model, is_installed

SAFETENSORS_DEMO_ID = "smollm2-135m-instruct-st"
NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "gguf")
REVISION = 1  # of the output of `dequantize`; part of the folder's name


def safetensors_demo(models_dir: Path) -> Path:
    """Returns the model's folder, which need not exist."""
    return models_dir / SAFETENSORS_DEMO_ID / f"{BUNDLED_SHA256[:12]}-{REVISION}"


def unpacking(models_dir: Path) -> list[str] | None:
    """Returns the command that creates the folder; None if the extra `demo` or `torch` is not installed."""
    source = bundled_model()
    if source is None or not all(map(is_installed, NEEDED)):
        return None
    target = safetensors_demo(models_dir)
    return [sys.executable, "-m", "services.models.demo.dequantize", str(source), BUNDLED_SHA256, str(target)]


def install_safetensors_demo(models_dir: Path, progress: Callable[[str], None]) -> Path | None:
    """Installs the model in `models_dir`, once. Returns its folder, or None without the extras.

    Raises:
        DemoError: the bundled file's hash differs, or it cannot be unpacked.
    """
    command = unpacking(models_dir)
    if command is None:
        return None
    target = safetensors_demo(models_dir)
    if not target.exists():
        progress(f"preparing {SAFETENSORS_DEMO_ID}: unpacking to safetensors (270 MB, once)")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise unpacking_failed(done.stderr)
    return target


def unpacking_failed(output: str) -> DemoError:
    """Builds the error for a failed command; `output` is its stderr."""
    return DemoError(f"{SAFETENSORS_DEMO_ID} cannot be made: {output.strip()[-500:]}")
