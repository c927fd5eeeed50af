"""Reads the header of a safetensors file: eight bytes of length, then JSON. The weights after it are not read.

Format: https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from services.errors import ModelInvalid
from services.models.formats.document import parse_object
from services.models.hub.source import FileTree, read_fully, reading

MAX_HEADER = 100_000_000  # bytes; the limit of the reference implementation
FIRST_READ = 256 * 1024  # bytes; holds most headers, so that a remote file takes one request
MAX_DIMENSIONS = 64
_LFS = b"version https://git-lfs"
# Bits of a number. Other dtypes are accepted without a size check.
_DTYPES = {
    4: "F4",
    6: "F6_E2M3 F6_E3M2",
    8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
    16: "I16 U16 F16 BF16",
    32: "I32 U32 F32",
    64: "I64 U64 F64 C64",
}
_BITS = {dtype: bits for bits, dtypes in _DTYPES.items() for dtype in dtypes.split()}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's entry in a header."""

    dtype: str  # the format's name, such as `BF16`
    size: int  # bytes
    shape: tuple[int, ...]


Tensors = Mapping[str, Tensor]  # by name


def read_tensors(tree: FileTree, path: str) -> dict[str, Tensor]:
    """Reads and checks the header of a safetensors file. Returns its tensors by name.

    Raises:
        ModelInvalid: the file is no safetensors file, is inconsistent, or does not have the size that its header says.
    """
    size = tree.files[path].size
    with reading(tree, path) as file:
        data = _header(file, path, size)
    entries = parse_object(data, f"the header of {path}", strict=True)
    metadata = entries.pop("__metadata__", None)
    if metadata is not None and not _is_metadata(metadata):
        raise ModelInvalid(f"{path} is corrupt: __metadata__ in its header is not an object of strings")
    if not entries:
        raise ModelInvalid(f"{path} holds no tensors")
    needed = 8 + len(data) + _weights(path, entries)
    if size < needed:
        raise ModelInvalid(f"{path} is cut off: it has {size} bytes; by its header it must have {needed}")
    if size > needed:
        raise ModelInvalid(f"{path} is corrupt: it has {size} bytes; by its header it must have {needed}")
    return {name: _tensor(entry) for name, entry in entries.items()}


def _header(file: BinaryIO, path: str, size: int) -> bytes:
    """Reads the JSON of the header."""
    begin = read_fully(file, min(size, FIRST_READ))
    if begin.startswith(_LFS):
        raise ModelInvalid(f"{path} is only Git LFS's pointer to the file: fetch it with `git lfs pull`")
    length = int.from_bytes(begin[:8], "little")
    if length > MAX_HEADER:
        raise ModelInvalid(
            f"{path} is not a safetensors file: it claims a header of {length} bytes; at most {MAX_HEADER} are allowed"
        )
    if size < 8 + length:
        raise ModelInvalid(f"{path} is cut off: it has {size} bytes; its header alone takes {8 + length}")
    data = begin[8 : 8 + length]
    data += read_fully(file, length - len(data))
    if len(data) < length:
        raise ModelInvalid(f"{path} is cut off: it ends after {8 + len(data)} bytes; {size} were expected")
    return data


def _weights(path: str, entries: dict[str, Any]) -> int:
    """Returns the bytes of all tensors, which must be contiguous."""
    ranges = sorted((*_range(path, name, entry), name) for name, entry in entries.items())
    reached = 0
    for begin, end, name in ranges:
        if begin != reached:
            how = "overlaps the one before it" if begin < reached else "leaves a gap before it"
            raise ModelInvalid(f"{path} is corrupt: tensor {name[:100]!r} begins at {begin}, which {how} ({reached})")
        reached = end
    return reached


def _tensor(entry: Any) -> Tensor:
    begin, end = entry["data_offsets"]
    return Tensor(entry["dtype"], end - begin, tuple(entry["shape"]))


def _range(path: str, name: str, entry: Any) -> tuple[int, int]:
    """Checks a tensor's entry. Returns its begin and end offsets, relative to the end of the header."""
    fault = f"{path} is corrupt: in its header tensor {name[:100]!r}"
    if not isinstance(entry, dict):
        raise ModelInvalid(f"{fault} is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise ModelInvalid(f"{fault} has no dtype")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_count, shape)):
        raise ModelInvalid(f"{fault} has the shape {reprlib.repr(shape)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise ModelInvalid(f"{fault} has the data_offsets {reprlib.repr(offsets)}")
    begin, end = offsets
    if begin > end:
        raise ModelInvalid(f"{fault} ends before it begins, at {end} and {begin}")
    if dtype in _BITS and math.prod(shape) * _BITS[dtype] != (end - begin) * 8:
        raise ModelInvalid(f"{fault} has {end - begin} bytes, which does not fit {dtype} of {reprlib.repr(shape)}")
    return begin, end


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_metadata(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
