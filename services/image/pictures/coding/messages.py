"""What the image service and a codec process say to each other: a codec has one file at a time.

The service sends `Allow` once, then orders, `Decode` or `Encode`. The codec answers each with `Begun`, and with
`Decoded`, `Encoded` or `Refused`.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.sandbox.messages import Begun, Ready, Unusable


@dataclass(frozen=True, slots=True)
class Allow:
    """First message to a codec: how large pictures may be. Its memory is limited accordingly."""

    max_pixels: int  # width x height


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Which size a picture shall be given."""

    width: int  # exactly, or what tells how many pixels
    height: int
    exact: bool  # whether width and height are wanted; else the picture keeps its shape as nearly as can be
    multiple_of: int = 1  # of each side
    min_side: int = 1
    max_side: int = 1 << 16
    max_pixels: int = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """An uploaded file, and perhaps a mask for it."""

    image: bytes
    mask: bytes = b""  # empty: none
    fit: Fit
    own_mask: bool  # whether transparent areas of the image are its mask, if it has no other


@dataclass(frozen=True, slots=True, kw_only=True)
class Encode:
    """A picture to be written."""

    width: int
    height: int
    pixels: bytes  # rows of RGB uint8
    kind: str  # png, jpeg or webp
    quality: int  # 0 to 100, of jpeg and webp
    texts: dict[str, str]  # what a PNG tells of itself; others tell nothing


@dataclass(frozen=True, slots=True)
class Decoded:
    """What was in the file, upright and scaled."""

    width: int
    height: int
    pixels: bytes  # rows of RGB uint8
    mask: bytes | None  # rows of uint8: 255 where the image shall be drawn over, 0 elsewhere; None: everywhere


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The file cannot be read; the message is for the caller."""

    message: str
    param: str  # image or mask; empty: neither is at fault


ToCodec = Allow | Decode | Encode
FromCodec = Ready | Unusable | Begun | Decoded | Encoded | Refused
