"""Reads a GGUF file's header: metadata and tensor list, not the weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little-endian, versions 2 and 3).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from services.models.hub.source import read_fully

MAGIC = b"GGUF"
MAX_STRING = 64 * 1024 * 1024
MAX_ITEMS = 16_000_000  # in an array, or tensors
MAX_ENTRIES = 100_000  # of the metadata, which is kept in memory
MAX_HEADER = 128 * 1024 * 1024  # bytes; the largest vocabularies take a tenth of it
MAX_DIMENSIONS = 4
MAX_CONTEXT = 2**31 - 1
MAX_LIST = 1024  # longest integer array that is kept; enough for one value per layer
MAX_LISTS = 64
DEFAULT_ALIGNMENT = 32
BLOCK = 1024 * 1024  # bytes per read; each is a request for a remote file
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_WHOLE = (0, 1, 2, 3, 4, 5, 10, 11)

# Tensor type -> (numbers in a block, bytes of a block). A test compares the table with the pinned llama.cpp.
TENSOR_TYPES: dict[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
    41: (128, 18),  # Q1_0
    42: (64, 18),  # Q2_0
}


class GgufError(Exception):
    """The file is no readable GGUF file; the message says where parsing fails."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a GGUF file. `metadata` holds only the lengths of arrays; `lists` holds short arrays of integers,
    such as the heads of each layer.
    """

    metadata: dict[str, Any]
    tensors: int
    size: int  # bytes of the file
    needed: int  # least bytes of the file by its header; 0: a tensor has an unknown type
    lists: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """The model's architecture, such as `llama`."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def context_length(self) -> int:
        """The trained context length in tokens; 0 if the file has no valid value."""
        value = self.metadata.get(f"{self.architecture}.context_length", 0)
        return value if isinstance(value, int) and 0 < value <= MAX_CONTEXT else 0


def read_header(path: Path) -> GgufHeader:
    """Reads the header of a GGUF file.

    Raises:
        GgufError: the file is missing, no GGUF file, of an unsupported version, or its header is cut off.
    """
    try:
        with path.open("rb") as file:
            return read_header_from(file, str(path), path.stat().st_size)
    except OSError as error:
        raise GgufError(f"{path}: {error.strerror}") from error


def read_header_from(file: BinaryIO, name: str, size: int) -> GgufHeader:
    """Reads the header of an open file of `size` bytes; `name` is for messages.

    Reads in blocks and skips by seeking, so that little more than the header of a remote file is transferred.

    Raises:
        GgufError: it is no GGUF file, of an unsupported version, or its header is cut off.
    """
    return _Reader(file, name, size).header()


class _Reader:
    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file = file
        self._name = name
        self._size = size
        self._block = b""
        self._lists = 0  # kept so far
        self._start = 0  # offset of the block in the file
        self._at = 0  # position in the file

    def header(self) -> GgufHeader:
        if self._bytes(4) != MAGIC:
            raise GgufError(f"{self._name} is not a GGUF file: it does not begin with 'GGUF'")
        version = self._scalar(4)
        if version not in (2, 3):
            raise GgufError(f"{self._name} is GGUF version {version}; versions 2 and 3 can be read")
        tensors, count = self._scalar(10), self._scalar(10)
        if count > MAX_ENTRIES or tensors > MAX_ITEMS:
            raise self._corrupt(f"it claims {count} metadata entries and {tensors} tensors")
        metadata: dict[str, Any] = {}
        lists = {}
        for _ in range(count):
            key = self._string()
            value = self._value(self._scalar(4))
            if isinstance(value, tuple):
                lists[key], value = value, len(value)
            metadata[key] = value
        return GgufHeader(metadata, tensors, self._size, self._weights(tensors, _alignment(metadata)), lists)

    def _weights(self, count: int, alignment: int) -> int:
        """Reads the tensor list. Returns the least size of the file in bytes, 0 if a tensor's type is unknown."""
        if not alignment:
            raise self._corrupt("general.alignment is not a power of two")
        end, known = 0, True
        for _ in range(count):
            name, offset, size = self._tensor()
            if offset % alignment:
                where = f"at {offset}, which is not a multiple of {alignment}"
                raise self._corrupt(f"tensor {name[:100]!r} begins {where}")
            known = known and size is not None
            end = max(end, offset + (size or 0))
        if not known:
            return 0
        return -(-self._at // alignment) * alignment + end if end else self._at

    def _tensor(self) -> tuple[str, int, int | None]:
        """Returns a tensor's name, its offset in the weights, and its size in bytes, None if its type is unknown."""
        name, dimensions = self._string(), self._scalar(4)
        if dimensions > MAX_DIMENSIONS:
            raise self._corrupt(f"tensor {name[:100]!r} claims {dimensions} dimensions")
        shape = tuple(self._scalar(10) for _ in range(dimensions))
        kind, offset = self._scalar(4), self._scalar(10)
        numbers, size = TENSOR_TYPES.get(kind, (1, 0))
        # The first dimension is the contiguous one.
        if math.prod(shape) >= 2**63 or (shape and shape[0] % numbers):
            raise self._corrupt(f"tensor {name[:100]!r} of type {kind} claims the shape {list(shape)}")
        return name, offset, math.prod(shape) // numbers * size if kind in TENSOR_TYPES else None

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._scalar(kind)

    def _array(self) -> int | tuple[int, ...]:
        """Reads a short array of integers; skips any other array and returns its length."""
        kind, length = self._scalar(4), int(self._scalar(10))
        if length > MAX_ITEMS:
            raise self._corrupt(f"an array claims {length} items")
        if kind in _WHOLE and length <= MAX_LIST and self._lists < MAX_LISTS:
            self._lists += 1
            return tuple(self._scalar(kind) for _ in range(length))
        if kind == _STRING:
            for _ in range(length):
                self._skip(self._scalar(10))
        elif kind in _SCALARS:
            self._skip(struct.calcsize(_SCALARS[kind]) * length)
        else:
            raise self._corrupt(f"an array of type {kind} at byte {self._at}")
        return length

    def _scalar(self, kind: int) -> Any:
        shape = _SCALARS.get(kind)
        if shape is None:
            raise self._corrupt(f"unknown value type {kind} at byte {self._at}")
        return struct.unpack(shape, self._bytes(struct.calcsize(shape)))[0]

    def _string(self) -> str:
        length = self._scalar(10)
        if length > MAX_STRING:
            raise self._corrupt(f"a string claims {length} bytes at byte {self._at}")
        return self._bytes(length).decode(errors="replace")

    def _bytes(self, count: int) -> bytes:
        begin = self._at - self._start
        if not 0 <= begin <= len(self._block) - count:
            self._fetch(count)
            begin = 0
        self._skip(count)
        return self._block[begin : begin + count]

    def _fetch(self, count: int) -> None:
        """Reads the block at the current position, with at least `count` bytes."""
        if self._at + count > self._size:
            raise self._cut_off()
        if self._at != self._start + len(self._block):
            self._file.seek(self._at)
        wanted = min(max(count, BLOCK), self._size - self._at)
        self._start, self._block = self._at, read_fully(self._file, wanted)
        if len(self._block) < count:
            raise self._cut_off()

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > self._size:
            raise self._cut_off()
        if self._at > MAX_HEADER:
            raise self._corrupt(f"its header is larger than {MAX_HEADER} bytes")

    def _cut_off(self) -> GgufError:
        return GgufError(f"{self._name} is cut off: its header continues past its {self._size} bytes")

    def _corrupt(self, how: str) -> GgufError:
        return GgufError(f"{self._name} is corrupt: {how}")


def _alignment(metadata: dict[str, Any]) -> int:
    """Returns the alignment of tensors in bytes; 0 if the metadata's value is invalid."""
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    return value if type(value) is int and 0 < value < 2**31 and not value & (value - 1) else 0
