"""Verification of a file on disk against its manifest."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from services.errors import Cancelled
from services.models.manifest import ManifestFile

CHUNK = 1024 * 1024  # bytes


def size_problem(file: ManifestFile, folder: Path, *, links: bool) -> str:
    """Checks a file's presence and size; returns a sentence, empty if it is fine. `links`: allows symbolic links."""
    path = folder / file.path
    try:
        found = path.stat() if links else path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is not a file"
    if found.st_size != file.size:
        return f"{path} has {found.st_size} bytes, expected {file.size}"
    return ""


def problem(
    file: ManifestFile, folder: Path, progress: Callable[[int], None], stop: threading.Event, *, links: bool
) -> str:
    """Checks a file, including its content if the manifest has a hash; returns a sentence, empty if fine. Blocks.

    `progress` is called with the number of verified bytes of the file.

    Raises:
        Cancelled: `stop` was set.
    """
    if sentence := size_problem(file, folder, links=links):
        return sentence
    if file.sha256:
        try:
            found = _sha256(folder / file.path, progress, stop)
        except OSError as error:
            return f"{folder / file.path} cannot be read: {error.strerror}"
        if found != file.sha256:
            return f"{folder / file.path} has SHA-256 {found}, expected {file.sha256}"
    progress(file.size)
    return ""


def _sha256(path: Path, progress: Callable[[int], None], stop: threading.Event) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as source:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while chunk := source.read(CHUNK):
            if stop.is_set():
                raise Cancelled(f"{path}: verifying was stopped")
            digest.update(chunk)
            done += len(chunk)
            progress(done)
    return digest.hexdigest()
