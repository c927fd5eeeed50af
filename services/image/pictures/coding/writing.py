"""Encodes pixels as picture files."""

from __future__ import annotations

import io

from PIL import Image, PngImagePlugin

from services.image.pictures.coding.messages import Encode, Encoded

PNG_LEVEL = 6  # zlib's level: higher ones take several times as long and save a few percent


def write(order: Encode) -> Encoded:
    """Writes a picture. Raises ValueError if the pixels do not match its size."""
    image = Image.frombytes("RGB", (order.width, order.height), order.pixels)
    file = io.BytesIO()
    if order.kind == "png":
        image.save(file, "PNG", compress_level=PNG_LEVEL, pnginfo=_texts(order.texts))
    elif order.kind == "jpeg":
        image.save(file, "JPEG", quality=max(1, order.quality))  # libjpeg has no quality 0
    else:
        image.save(file, "WEBP", quality=order.quality)
    return Encoded(file.getvalue())


def _texts(texts: dict[str, str]) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    for name, value in texts.items():
        info.add_itxt(name, value)
    return info
