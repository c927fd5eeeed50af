"""Checks CTranslate2's model file: its header, and, for a local file, its completeness.

Layout (version 6, little-endian): version, name of the specification, its revision, number of variables; each variable
with name, shape, type, byte count and content; then aliases of names.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from services.errors import ModelInvalid
from services.models.hub.source_tree import FileTree

VERSION = 6  # other versions are accepted unchecked
SPECIFICATION = "WhisperSpec"
MAX_VARIABLES = 100_000
MAX_DIMENSIONS = 8


def check_model(tree: FileTree, path: str) -> None:
    """Checks a model file without reading its weights. Of a remote file only the beginning is read, because the rest
    would take a request per variable, and the hub already reports its size.

    Raises:
        ModelInvalid: it holds another kind of model, is cut off, or is corrupt.
    """
    size = tree.files[path].size
    try:
        with tree.open(path) as file:
            reader = _Reader(file, path, size)
            if reader.number("<I") != VERSION:
                return
            name = reader.text()
            if name != SPECIFICATION:
                raise ModelInvalid(f"{path} holds {name[:100]!r}, not a Whisper model of CTranslate2")
            if tree.folder:
                reader.variables()
    except OSError as error:
        raise ModelInvalid(f"{path}: {error.strerror or error}") from error


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Reads the shapes of the variables in a model file, by name; empty for an unknown version.

    Raises:
        ModelInvalid: it is cut off or corrupt.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        reader = _Reader(file, str(path), path.stat().st_size)
        if reader.number("<I") != VERSION:
            return {}
        reader.text()
        return reader.variables()


class _Reader:
    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self._file = file
        self._path = path
        self._size = size

    def number(self, shape: str) -> int:
        return int(struct.unpack(shape, self._bytes(struct.calcsize(shape)))[0])

    def text(self) -> str:
        return self._bytes(self.number("<H")).rstrip(b"\0").decode(errors="replace")

    def variables(self) -> dict[str, tuple[int, ...]]:
        """Reads the file to its end, skipping the weights. Returns the shapes of all variables."""
        self.number("<I")  # revision
        count = self._count()
        shapes = {}
        for _ in range(count):
            name = self.text()
            dimensions = self.number("<B")
            if dimensions > MAX_DIMENSIONS:
                raise ModelInvalid(f"{self._path} is corrupt: a variable claims {dimensions} dimensions")
            shapes[name] = struct.unpack(f"<{dimensions}I", self._bytes(4 * dimensions))
            self._bytes(1)  # its type
            length = self.number("<I")
            end = self._file.tell() + length
            if end > self._size:
                raise self._cut_off(end)
            self._file.seek(end)
        for _ in range(2 * self._count()):
            self.text()
        return shapes

    def _count(self) -> int:
        count = self.number("<I")
        if count > MAX_VARIABLES:
            raise ModelInvalid(f"{self._path} is corrupt: it claims {count} variables")
        return count

    def _bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise self._cut_off(self._file.tell() - len(data) + count)
        return data

    def _cut_off(self, needed: int) -> ModelInvalid:
        return ModelInvalid(f"{self._path} is cut off: it has {self._size} bytes and must have {needed} or more")
