"""Reads a GGUF file's header: metadata and tensor list, never the weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little-endian, versions 2 and 3).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"GGUF"
MAX_STRING = 64 * 1024 * 1024
MAX_ITEMS = 16_000_000
MAX_CONTEXT = 2**31 - 1
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


class GgufError(Exception):
    """The file is not a GGUF file that can be read; the message says where it breaks."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of itself. Arrays of the metadata are left out: only their lengths are kept."""

    metadata: dict[str, Any]
    tensors: int
    size: int  # bytes of the file

    @property
    def architecture(self) -> str:
        """The model's architecture, such as `llama`."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def context_length(self) -> int:
        """Tokens that the model was trained for; 0 when the file does not say, or nothing that can be."""
        value = self.metadata.get(f"{self.architecture}.context_length", 0)
        return value if isinstance(value, int) and 0 < value <= MAX_CONTEXT else 0


def read_header(path: Path) -> GgufHeader:
    """Reads the header of a GGUF file.

    Raises:
        GgufError: the file is missing, is no GGUF file, has a version that is not supported, or is cut off.
    """
    try:
        with path.open("rb") as file:
            return _Reader(file, path).header()
    except OSError as error:
        raise GgufError(f"{path}: {error.strerror}") from error


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._size = path.stat().st_size

    def header(self) -> GgufHeader:
        if self._bytes(4) != MAGIC:
            raise GgufError(f"{self._path} is not a GGUF file: it does not begin with 'GGUF'")
        version = self._scalar(4)
        if version not in (2, 3):
            raise GgufError(f"{self._path} is GGUF version {version}; versions 2 and 3 can be read")
        tensors, count = self._scalar(10), self._scalar(10)
        if count > MAX_ITEMS or tensors > MAX_ITEMS:
            raise GgufError(f"{self._path} is corrupt: it claims {count} metadata entries and {tensors} tensors")
        metadata = {}
        for _ in range(count):
            key = self._string()
            metadata[key] = self._value(self._scalar(4))
        return GgufHeader(metadata, tensors, self._size)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array_length()
        return self._scalar(kind)

    def _array_length(self) -> int:
        """Skips an array and returns its length."""
        kind, length = self._scalar(4), int(self._scalar(10))
        if length > MAX_ITEMS:
            raise GgufError(f"{self._path} is corrupt: an array claims {length} items")
        if kind == _STRING:
            for _ in range(length):
                self._skip(self._scalar(10))
        elif kind in _SCALARS:
            self._skip(struct.calcsize(_SCALARS[kind]) * length)
        else:
            raise GgufError(f"{self._path} is corrupt: an array of type {kind} at byte {self._file.tell()}")
        return length

    def _scalar(self, kind: int) -> Any:
        shape = _SCALARS.get(kind)
        if shape is None:
            raise GgufError(f"{self._path} is corrupt: unknown value type {kind} at byte {self._file.tell()}")
        return struct.unpack(shape, self._bytes(struct.calcsize(shape)))[0]

    def _string(self) -> str:
        length = self._scalar(10)
        if length > MAX_STRING:
            raise GgufError(f"{self._path} is corrupt: a string claims {length} bytes at byte {self._file.tell()}")
        return self._bytes(length).decode(errors="replace")

    def _bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise GgufError(f"{self._path} is cut off: its header goes on past its {self._size} bytes")
        return data

    def _skip(self, count: int) -> None:
        if count > self._size or self._file.seek(count, 1) > self._size:
            raise GgufError(f"{self._path} is cut off: its header goes on past its {self._size} bytes")
