"""Deliberately broken models: the demo model's GGUF file with one defect each.

The defects occur in practice: a converter's mistake, a wrong template, a damaged file. The file is copied and patched
as bytes, because a full parse and rewrite takes ten times as long.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.demo_model import demo_model

ALIGNMENT = 32
STRING, ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # type: bytes of a value
_WORD = 2  # bytes of a weight, BF16 or F16


@dataclass
class GgufBytes:
    """A GGUF file: its header, the offsets of values and tensors in it, and the start of the weights."""

    header: bytearray
    data: int  # offset of the weights in the original file
    values: dict[str, tuple[int, int]] = field(default_factory=dict)  # start and end offsets in the header
    tensors: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # offset from `data`, shape
    names: dict[str, int] = field(default_factory=dict)  # offsets of the tensors' names in the header
    weights: list[Callable[[NDArray[np.uint16]], None]] = field(default_factory=list)  # changes of 16-bit words

    @classmethod
    def read(cls, path: Path) -> GgufBytes:
        """Reads the header."""
        with path.open("rb") as file:
            raw = file.read(16 * 1024 * 1024)
        found, at = cls(bytearray(), 0), 24
        tensors, values = struct.unpack_from("<QQ", raw, 8)
        for _ in range(values):
            key, at = _string(raw, at)
            kind, at = struct.unpack_from("<I", raw, at)[0], at + 4
            end = _skip(raw, at, kind)
            found.values[key], at = (at, end), end
        for _ in range(tensors):
            start = at
            name, at = _string(raw, at)
            rank = struct.unpack_from("<I", raw, at)[0]
            shape = struct.unpack_from(f"<{rank}Q", raw, at + 4)
            at += 4 + 8 * rank
            place = struct.unpack_from("<Q", raw, at + 4)[0]
            found.tensors[name], found.names[name], at = (place, shape), start + 8, at + 12
        found.header, found.data = bytearray(raw[:at]), -(-at // ALIGNMENT) * ALIGNMENT
        return found

    def put(self, key: str, value: bytes) -> None:
        """Replaces a value with one of any size; must follow all other changes of the header."""
        start, end = self.values[key]
        self.header[start:end] = value

    def strings(self, key: str) -> list[str]:
        """Returns the strings of an array value."""
        count, at = struct.unpack_from("<Q", self.header, self.values[key][0] + 4)[0], self.values[key][0] + 12
        found = []
        for _ in range(count):
            text, at = _string(self.header, at)
            found.append(text)
        return found

    def rename(self, old: str, new: str) -> None:
        """Renames a value or a tensor; the new name has the same length."""
        assert len(old) == len(new)
        at = self.names.get(old) or self.header.index(old.encode())
        self.header[at : at + len(old)] = new.encode()

    def words(self, name: str, change: Callable[[NDArray[np.uint16]], NDArray[np.uint16]]) -> None:
        """Changes a tensor [rows, columns] of 16-bit weights; `change` gets and returns their bits."""
        place, shape = self.tensors[name]
        start, count = place // _WORD, int(np.prod(shape))

        def apply(file: NDArray[np.uint16]) -> None:
            rows = file[start : start + count].reshape(shape[::-1])
            rows[:] = change(rows.copy())

        self.weights.append(apply)

    def swap(self, one: str, other: str) -> None:
        """Swaps the contents of two tensors of the same shape, with 16-bit weights."""
        (first, shape), (second, _) = self.tensors[one], self.tensors[other]
        count = int(np.prod(shape))

        def apply(file: NDArray[np.uint16]) -> None:
            mine, theirs = (file[place // _WORD : place // _WORD + count] for place in (first, second))
            mine[:], theirs[:] = theirs.copy(), mine.copy()

        self.weights.append(apply)

    def write(self, source: Path, path: Path) -> Path:
        """Writes the changed file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        header = bytes(self.header) + bytes(-len(self.header) % ALIGNMENT)
        with source.open("rb") as original, path.open("wb") as file:
            file.write(header)
            original.seek(self.data)
            shutil.copyfileobj(original, file, 16 * 1024 * 1024)
        if self.weights:
            words = np.memmap(path, np.uint16, "r+", offset=len(header))
            for change in self.weights:
                change(words)
            words.flush()
        return path


Change = Callable[[GgufBytes], None]


def write_broken(path: Path, change: Change) -> Path:
    """Writes the demo model with a change."""
    found = GgufBytes.read(demo_model())
    change(found)
    return found.write(demo_model(), path)


def text(value: str) -> bytes:
    """Returns a string in GGUF encoding."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def texts(values: Sequence[str]) -> bytes:
    """Returns an array of strings in GGUF encoding."""
    return struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))


def _string(raw: bytes | bytearray, at: int) -> tuple[str, int]:
    size = struct.unpack_from("<Q", raw, at)[0]
    return raw[at + 8 : at + 8 + size].decode(), at + 8 + size


def _skip(raw: bytes, at: int, kind: int) -> int:
    """Returns the end offset of a value."""
    if kind == STRING:
        return at + 8 + int(struct.unpack_from("<Q", raw, at)[0])
    if kind != ARRAY:
        return at + _SIZES[kind]
    inner, count = struct.unpack_from("<IQ", raw, at)
    at += 12
    if inner != STRING:
        return at + int(_SIZES[inner] * count)
    for _ in range(count):
        at += 8 + int(struct.unpack_from("<Q", raw, at)[0])
    return at
