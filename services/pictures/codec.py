"""Decodes uploaded files to pixels (checked before decoding, upright, and scaled to a size that the model draws), and
encodes pixels as files.

Libraries allocate memory for a picture before they report its size, so the format and the size are read from the file's
first bytes.
"""

from __future__ import annotations

import io
import math
import struct

from PIL import Image, ImageChops, ImageOps, PngImagePlugin

from services.pictures.messages import Decode, DecodedPicture, Encode, EncodedPicture, Fit
from services.sandbox.child import Refusal

PNG = b"\x89PNG\r\n\x1a\n"
GIF = (b"GIF87a", b"GIF89a")
JPEG = b"\xff\xd8\xff"
WEBP_LOSSY, WEBP_LOSSLESS, WEBP_EXTENDED = b"VP8 ", b"VP8L", b"VP8X"
WEBP_HEADER_BYTES = 30
OPAQUE = 255
HALF = 128  # alpha below which a pixel counts as transparent
DEPTH_16 = "I;16"
PNG_LEVEL = 6  # zlib's level: higher ones take several times as long and save a few percent


def kind_of(data: bytes) -> str:
    """Returns PNG, JPEG, GIF or WEBP, which are Pillow's names; empty for anything else."""
    if data.startswith(PNG):
        return "PNG"
    if data.startswith(JPEG):
        return "JPEG"
    if data.startswith(GIF):
        return "GIF"
    return "WEBP" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def size_of(data: bytes) -> tuple[int, int] | None:
    """Returns width and height; None if they are not at the beginning, as in a JPEG, or the file is cut off.

    A GIF's first frame may be larger.
    """
    if data.startswith(PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    if data.startswith(GIF) and len(data) >= 10:
        width, height = struct.unpack_from("<HH", data, 6)
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


def fitted(width: int, height: int, fit: Fit) -> tuple[int, int]:
    """Returns the size for a `width` x `height` picture: its shape, with as many pixels as `fit`, within its limits."""
    if fit.exact:
        return fit.width, fit.height
    scale = math.sqrt(fit.width * fit.height / (width * height))
    if not fit.enlarge:
        scale = min(scale, 1.0)
    sides = [_side(width * scale, fit), _side(height * scale, fit)]
    while sides[0] * sides[1] > fit.max_pixels:
        longer = 0 if sides[0] >= sides[1] else 1
        shorter = sides[longer] - fit.multiple_of
        if shorter < fit.min_side:
            break  # no size within these limits is small enough: the caller reports that
        sides[longer] = shorter
    return sides[0], sides[1]


def _side(length: float, fit: Fit) -> int:
    step = fit.multiple_of
    lowest = -(-fit.min_side // step) * step
    highest = fit.max_side // step * step
    return min(max(round(length / step) * step, lowest), highest)


def read(order: Decode, max_pixels: int) -> DecodedPicture:
    """Reads an image and its mask. Raises Refusal."""
    image = _upright(order.image, order.param, max_pixels, gif=order.gif)
    mask = None
    if order.mask:
        mask = _mask(order.mask, image.size, max_pixels)
    elif order.own_mask:
        mask = _transparent(image)
    size = fitted(*image.size, order.fit)
    flat = ImageOps.fit(_flat(image), size, Image.Resampling.LANCZOS) if image.size != size else _flat(image)
    if mask is not None and mask.size != size:
        mask = ImageOps.fit(mask, size, Image.Resampling.BILINEAR)
    return DecodedPicture(*size, flat.tobytes(), _sharp(mask).tobytes() if mask is not None else None)


def _upright(data: bytes, param: str, max_pixels: int, *, gif: bool = False) -> Image.Image:
    kind = kind_of(data)
    if not kind or (kind == "GIF" and not gif):
        kinds = "PNG, JPEG, WebP or GIF" if gif else "PNG, JPEG or WebP"
        raise Refusal(f"'{param}' is not a {kinds} file.", param)
    _check_pixels(size_of(data), param, max_pixels)
    try:
        image = Image.open(io.BytesIO(data), formats=(kind,))
        _check_pixels(image.size, param, max_pixels)
        image.load()
        return ImageOps.exif_transpose(image)
    except MemoryError as error:
        raise Refusal(f"'{param}' needs more memory to be decoded than a decoder is allowed.", param) from error
    except Refusal:
        raise
    except Exception as error:
        # Any other error of the library is about the file. Its text may quote the file, so it is not passed on.
        raise Refusal(
            f"'{param}' is damaged: it cannot be decoded as {kind} ({type(error).__name__}).", param
        ) from None


def _check_pixels(size: tuple[int, int] | None, param: str, max_pixels: int) -> None:
    if size is None:
        return
    width, height = size
    if not width or not height:
        raise Refusal(f"'{param}' is damaged: it claims to have {width}x{height} pixels.", param)
    if width * height > max_pixels:
        message = f"'{param}' has {width * height} pixels ({width}x{height})"
        raise Refusal(f"{message}; at most {max_pixels} are allowed (ALLM_MAX_IMAGE_PIXELS).", param)


def _alpha(image: Image.Image) -> Image.Image | None:
    """Returns the alpha channel; None for a picture without transparency."""
    if not image.has_transparency_data:
        return None
    return image.convert("RGBA").getchannel("A")


def _flat(image: Image.Image) -> Image.Image:
    """Converts to RGB; transparent areas become white."""
    if image.mode.startswith(DEPTH_16):  # 16 bits of grey; the upper 8 are kept
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layers = image.convert("RGBA")
    white = Image.new("RGBA", layers.size, "white")
    return Image.alpha_composite(white, layers).convert("RGB")


def _mask(data: bytes, size: tuple[int, int], max_pixels: int) -> Image.Image:
    mask = _upright(data, "mask", max_pixels)
    if mask.size != size:
        mine, its = f"{mask.width}x{mask.height}", f"{size[0]}x{size[1]}"
        raise Refusal(f"'mask' has {mine} pixels; it must have the size of 'image', {its}.", "mask")
    alpha = _alpha(mask)
    if alpha is None:
        raise Refusal("'mask' has no alpha channel: its transparent areas mark where to edit the image.", "mask")
    if _all_opaque(alpha):
        raise Refusal("'mask' has no transparent area: it marks nothing to edit.", "mask")
    return ImageChops.invert(alpha)


def _transparent(image: Image.Image) -> Image.Image | None:
    """Returns the transparent areas of an image as a mask; None if there are none."""
    alpha = _alpha(image)
    return None if alpha is None or _all_opaque(alpha) else ImageChops.invert(alpha)


def _all_opaque(alpha: Image.Image) -> bool:
    lowest = alpha.getextrema()[0]
    return not isinstance(lowest, tuple) and lowest >= HALF


def _sharp(mask: Image.Image) -> Image.Image:
    """Reduces a mask to the values 0 and 255."""
    return mask.point([0] * HALF + [OPAQUE] * (OPAQUE + 1 - HALF))


def write(order: Encode) -> EncodedPicture:
    """Writes a picture. Raises ValueError if the pixels do not match its size."""
    image = Image.frombytes("RGB", (order.width, order.height), order.pixels)
    file = io.BytesIO()
    if order.kind == "png":
        image.save(file, "PNG", compress_level=PNG_LEVEL, pnginfo=_png_texts(order.texts))
    elif order.kind == "jpeg":
        image.save(file, "JPEG", quality=max(1, order.quality))  # libjpeg has no quality 0
    else:
        image.save(file, "WEBP", quality=order.quality)
    return EncodedPicture(file.getvalue())


def _png_texts(texts: dict[str, str]) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    for name, value in texts.items():
        info.add_itxt(name, value)
    return info
