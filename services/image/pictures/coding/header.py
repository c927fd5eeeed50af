"""Reads a file's format from its first bytes, and its size if the first bytes hold it.

Libraries allocate memory for a picture before they report its size, so the size must be known before they see the file.
"""

from __future__ import annotations

import struct

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"
WEBP_LOSSY, WEBP_LOSSLESS, WEBP_EXTENDED = b"VP8 ", b"VP8L", b"VP8X"
WEBP_HEADER_BYTES = 30


def kind_of(data: bytes) -> str:
    """Returns PNG, JPEG or WEBP, which are Pillow's names; empty for anything else."""
    if data.startswith(PNG):
        return "PNG"
    if data.startswith(JPEG):
        return "JPEG"
    return "WEBP" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def size_of(data: bytes) -> tuple[int, int] | None:
    """Returns width and height; None if they are not at the beginning, as in a JPEG, or the file is cut off."""
    if data.startswith(PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    return _webp(data) if kind_of(data) == "WEBP" and len(data) >= WEBP_HEADER_BYTES else None


def _webp(data: bytes) -> tuple[int, int] | None:
    chunk = data[12:16]
    if chunk == WEBP_EXTENDED:
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == WEBP_LOSSLESS:
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == WEBP_LOSSY:
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None
