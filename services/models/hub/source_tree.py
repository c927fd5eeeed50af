"""The files of a source before they are fetched: lists them and reads parts of them.

Model inspection (`services.models.formats`) uses only this interface, so that the same code checks a folder on disk and
a repository on the hub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from services.errors import ModelInvalid
from services.models.manifest import ManifestFile


class FileTree(Protocol):
    """A file listing. `repository` and `revision` are set for the hub, `folder` for a local source; else empty."""

    @property
    def files(self) -> Mapping[str, ManifestFile]:
        """Every file, by its path relative to the top folder, with `/` as separator."""

    @property
    def repository(self) -> str:
        """`org/name` on the hub."""

    @property
    def revision(self) -> str:
        """The commit of the listing."""

    @property
    def folder(self) -> str:
        """The absolute local folder."""

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, seekable. Of a remote file only the parts that are read are transferred. The caller
        closes it.

        Raises:
            ModelInvalid: it cannot be read; the message names it.
        """


class LocalTree:
    """A local folder, without hidden files. Links are followed within `roots`."""

    repository = ""
    revision = ""

    def __init__(self, folder: Path, roots: Sequence[Path], depth: int = 8, wanted: str = "") -> None:
        """Lists `folder` down to `depth` levels of subfolders. `wanted`: the only relevant file; empty: all files.

        Raises:
            ModelInvalid: the folder cannot be read, or holds a link that leads out of `roots`.
        """
        self._wanted = wanted
        self.folder = str(folder.absolute())
        self._root = folder
        self._roots = [root.resolve() for root in roots]
        try:
            self.files: Mapping[str, ManifestFile] = dict(sorted(self._list(folder, "", depth)))
        except OSError as error:
            raise ModelInvalid(f"{error.filename or folder}: {error.strerror}") from error

    def open(self, path: str) -> BinaryIO:
        """Opens one of the files."""
        try:
            return (self._root / path).open("rb")
        except OSError as error:
            raise ModelInvalid(f"{self._root / path}: {error.strerror}") from error

    def _list(self, folder: Path, prefix: str, depth: int) -> list[tuple[str, ManifestFile]]:
        found: list[tuple[str, ManifestFile]] = []
        for entry in folder.iterdir():
            path = prefix + entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not any(entry.resolve().is_relative_to(root) for root in self._roots):
                if self._wanted not in ("", path):
                    continue  # an unrelated file next to the model is no error
                raise ModelInvalid(f"{entry} is a link that leads out of ALLM_MODEL_ROOTS")
            if entry.is_dir():
                if depth:
                    found += self._list(entry, path + "/", depth - 1)
            elif entry.is_file():
                found.append((path, ManifestFile(path=path, size=entry.stat().st_size)))
        return found
