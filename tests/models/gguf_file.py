"""Writers of valid and broken GGUF headers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STRING, ARRAY = 8, 9
FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def text(value: str | bytes) -> bytes:
    """Encodes a GGUF string."""
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    """Encodes a metadata value without its type; arrays are `(kind, items)`."""
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        of, items = content
        return struct.pack("<IQ", of, len(items)) + b"".join(value(of, item) for item in items)
    return struct.pack(FORMATS[kind], content)


def entry(key: str, kind: int, content: Any) -> bytes:
    """Encodes a metadata entry."""
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def tensor(name: str, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """Encodes an entry of the tensor list."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(
    *entries: bytes,
    version: int = 3,
    tensors: Sequence[bytes] = (),
    count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    """Encodes a complete header; `count` and `tensor_count` can misstate the numbers of entries."""
    claimed = len(entries) if count is None else count
    claimed_tensors = len(tensors) if tensor_count is None else tensor_count
    return b"GGUF" + struct.pack("<IQQ", version, claimed_tensors, claimed) + b"".join((*entries, *tensors))


def with_weights(head: bytes, size: int, alignment: int = 32) -> bytes:
    """Encodes a complete file: the header and `size` bytes of weights."""
    return head + bytes(-len(head) % alignment) + bytes(size)


def llama(path: Path, architecture: str = "llama", context: int = 2048) -> Path:
    """Writes a file with the minimal header that an inspection accepts."""
    path.write_bytes(
        header(
            entry("general.architecture", STRING, architecture),
            entry(f"{architecture}.context_length", 4, context),
        )
    )
    return path
