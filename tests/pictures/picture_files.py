"""Picture files of all kinds, valid and hostile."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence

from PIL import Image

RED, BLUE = (255, 0, 0), (0, 0, 255)


def halves(width: int = 64, height: int = 32, left: Sequence[int] = RED, right: Sequence[int] = BLUE) -> Image.Image:
    """Returns an image with two colours side by side."""
    image = Image.new("RGB" if len(left) == 3 else "RGBA", (width, height), tuple(left))
    image.paste(tuple(right), (width // 2, 0, width, height))
    return image


def file(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Encodes a picture as a file."""
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


def png_header(width: int, height: int) -> bytes:
    """Returns a PNG whose header declares this size, with hardly any data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10))) + chunk(b"IEND", b"")
    )


def webp_header(width: int, height: int) -> bytes:
    """Returns a WebP whose header declares this size."""
    body = b"\0" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunk = b"VP8X" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk
