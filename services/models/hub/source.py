"""The source of a model's files: how operators write it, its file list, and reads before the files are fetched.

A source is `hf://org/name[@revision][#file]` or `file:///path`. Model inspection (`services.models.formats`) uses only
the interface `FileTree`, so that the same code checks a folder on disk and a repository on the hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from services.errors import InvalidRequest, ModelInvalid
from services.models.manifest import ManifestFile

HUB_SHAPE = "hf://org/name[@revision][#file]"
_HUB = re.compile(r"hf://(?P<repository>[^/@#\s]+/[^/@#\s]+)(?:@(?P<revision>[^@#\s]+))?(?:#(?P<file>[^#]+))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
MAX_SOURCE = 2000  # characters


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the hub, or one file in it."""

    repository: str  # `org/name`
    revision: str  # branch, tag or commit; empty: the default branch
    file: str  # path in the repository; empty: the whole repository


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A local file or folder: an absolute path that resolves to one below the roots.

    The path itself is not resolved: caches of the hub are links to files that are named by their hashes.
    """

    path: Path


Source = HubSource | LocalSource


def parse_source(text: str, roots: Sequence[Path], param: str = "source") -> Source:
    """Parses a source; `param` is its name in the request.

    Raises:
        InvalidRequest: it has neither shape, or points outside of `roots`; the error carries `param`.
    """
    if not text:
        raise InvalidRequest(f"Missing required parameter: '{param}'.", param=param)
    if len(text) > MAX_SOURCE:
        raise InvalidRequest(f"a source may have at most {MAX_SOURCE} characters", param=param)
    if text.startswith("hf://"):
        return _hub(text, param)
    if text.startswith("file://"):
        return _local(text, roots, param)
    raise InvalidRequest(f"the source {text!r} is neither {HUB_SHAPE} nor file:///path", param=param)


def _hub(text: str, param: str) -> HubSource:
    match = _HUB.fullmatch(text)
    if not match or not all(_NAME.fullmatch(part) for part in match["repository"].split("/")):
        raise InvalidRequest(f"the source {text!r} does not have the shape {HUB_SHAPE}", param=param)
    return HubSource(match["repository"], match["revision"] or "", unquote(match["file"] or ""))


def _local(text: str, roots: Sequence[Path], param: str) -> LocalSource:
    try:
        parts = urlsplit(text)
    except ValueError as error:  # such as an unbalanced bracket
        raise InvalidRequest(f"the source {text!r} is not a file:///absolute/path: {error}", param=param) from error
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute() or parts.query or parts.fragment:
        raise InvalidRequest(f"the source {text!r} does not have the shape file:///absolute/path", param=param)
    try:
        real = path.resolve()
        inside = any(real.is_relative_to(root.resolve()) for root in roots)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidRequest(f"the source {text!r} cannot be followed: {error}", param=param) from error
    if not inside:  # checked before existence, so that the error does not reveal files elsewhere
        allowed = ", ".join(map(str, roots))
        why = f"{path} is not below one of ALLM_MODEL_ROOTS ({allowed}): move it there, or add its folder to them"
        raise InvalidRequest(why, param=param)
    return LocalSource(real if ".." in path.parts else path)


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


@contextmanager
def reading(tree: FileTree, path: str) -> Iterator[BinaryIO]:
    """Opens a file of a tree for the block. Raises ModelInvalid, which names the file, for an OSError in the block."""
    try:
        with tree.open(path) as file:
            yield file
    except OSError as error:
        raise ModelInvalid(f"{path}: {error.strerror or error}") from error


def read_fully(file: BinaryIO, count: int) -> bytes:
    """Reads `count` bytes, fewer at the file's end: one read of a remote file may return less than is there."""
    parts: list[bytes] = []
    while count > 0 and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
