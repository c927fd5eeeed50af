"""The manifest of a model: its exact files, fixed at registration. Services fetch, verify and serve only these."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from services.errors import ModelInvalid

MAX_FILES = 20_000
MAX_PATH = 1000  # characters
MAX_BYTES = 2**60  # of all files: sizes from a hub are sent on as 64-bit integers
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\:]")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One file: path below the model's folder, exact size in bytes, SHA-256 in hexadecimal or empty."""

    path: str
    size: int
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All files of one generation. Either `repository` and `revision` (the hub) or `folder` (local) is set.

    `primary` is the path of the file that a runtime opens; empty when it opens the folder.
    """

    files: tuple[ManifestFile, ...]
    primary: str = ""
    repository: str = ""
    revision: str = ""
    folder: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 over its source and files, independent of the order of the files."""
        files = sorted((file.path, file.size, file.sha256) for file in self.files)
        return hashlib.sha256(json.dumps([self.repository, self.revision, self.folder, files]).encode()).hexdigest()

    def check(self) -> None:
        """Checks that no path leaves the model's folder, and that no file is listed twice.

        Raises:
            ModelInvalid: a check fails, or the manifest is empty or over a limit.
        """
        if not self.files:
            raise ModelInvalid("the model has no files")
        if len(self.files) > MAX_FILES:
            raise ModelInvalid(f"the model has {len(self.files)} files; at most {MAX_FILES} are allowed")
        if self.folder and not Path(self.folder).is_absolute():
            raise ModelInvalid(f"the folder {self.folder!r} is not absolute")
        seen: set[str] = set()
        for file in self.files:
            _check_file(file)
            if file.path.casefold() in seen:  # some filesystems ignore case
                raise ModelInvalid(f"the file {file.path!r} is listed twice")
            seen.add(file.path.casefold())
        if self.size > MAX_BYTES:
            raise ModelInvalid(f"the model has {self.size:,} bytes; at most {MAX_BYTES:,} are allowed")
        if self.primary and self.primary not in {file.path for file in self.files}:
            raise ModelInvalid(f"the file {self.primary!r} is not among the model's files")


def _check_file(file: ManifestFile) -> None:
    parts = file.path.split("/")
    path = PurePosixPath(file.path)
    if not file.path or len(file.path) > MAX_PATH or path.is_absolute() or _FORBIDDEN.search(file.path):
        raise ModelInvalid(f"the path {file.path[:200]!r} is not allowed")
    if any(part in ("", ".", "..") for part in parts):
        raise ModelInvalid(f"the path {file.path[:200]!r} leaves the model's folder")
    if file.size < 0:
        raise ModelInvalid(f"{file.path} has a size of {file.size} bytes")
    if file.sha256 and not _SHA256.fullmatch(file.sha256):
        raise ModelInvalid(f"{file.path}: {file.sha256[:80]!r} is not a SHA-256")
