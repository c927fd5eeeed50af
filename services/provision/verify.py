"""Whether a file on disk is the one that a manifest names."""

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
    """What is wrong with a file's presence and size, in a sentence; empty: nothing. `links`: whether it may be one."""
    path = folder / file.path
    try:
        found = path.stat() if links else path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is no file"
    if found.st_size != file.size:
        return f"{path} has {found.st_size} bytes, expected are {file.size}"
    return ""


def problem(
    file: ManifestFile, folder: Path, progress: Callable[[int], None], stop: threading.Event, *, links: bool
) -> str:
    """What is wrong with a file, its content included where the manifest has a hash; empty: nothing. Blocks.

    `progress` is called with the bytes of the file that are verified.

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
            return f"{folder / file.path} has SHA-256 {found}, expected is {file.sha256}"
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
