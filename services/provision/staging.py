"""The staging folder: a model's files before their publication."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from services.models.manifest import Manifest, ManifestFile
from services.storage import sync

SMALL = 16 * 1024 * 1024  # bytes


def on_disk(manifest: Manifest, staging: Path) -> int:
    """Returns the bytes of the manifest's files that are on disk."""
    total = 0
    for file in manifest.files:
        with contextlib.suppress(OSError):
            total += min((staging / file.path).lstat().st_size, file.size)
    return total


def prune(manifest: Manifest, staging: Path) -> None:
    """Removes links, files that the manifest does not name, and files that cannot be resumed.

    Those include small files without a hash: after a power cut such a file may have its size, but not its content.

    Raises:
        OSError: something cannot be removed.
    """
    _prune(staging, "", {file.path: file for file in manifest.files}, _folders(manifest))


def publish(manifest: Manifest, staging: Path, target: Path) -> None:
    """Publishes the staging folder as `target`, with one rename. Its files are synced already.

    Raises:
        OSError: it failed; then `target` does not exist.
    """
    for folder in sorted(_folders(manifest), reverse=True):
        sync(staging / folder)
    for attempt in (1, 2, 3):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            staging.rename(target)
            break
        except FileNotFoundError:  # another process discarded a generation and removed the empty parent
            if attempt == 3:
                raise
    sync(target.parent)


def _folders(manifest: Manifest) -> set[str]:
    """Returns every folder with a file of the manifest below it; "" is the top."""
    parts = [file.path.split("/")[:-1] for file in manifest.files]
    return {"/".join(names[:depth]) for names in parts for depth in range(len(names) + 1)}


def _prune(folder: Path, prefix: str, files: Mapping[str, ManifestFile], folders: set[str]) -> None:
    for entry in list(folder.iterdir()):
        path = prefix + entry.name
        if entry.is_symlink() or not entry.is_dir():
            file = files.get(path)
            if entry.is_symlink() or not entry.is_file() or not file or (not file.sha256 and file.size <= SMALL):
                entry.unlink()
        elif path in folders:
            _prune(entry, path + "/", files, folders)
        else:
            shutil.rmtree(entry)
