"""Messages between a service and a codec process, which handles one file at a time.

The service sends `Allow` once, then orders, `Decode` or `Encode`. The codec answers each with `Begun`, then with
`DecodedPicture`, `EncodedPicture` or `OrderRefused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.sandbox.child import Begun, ChildReady, OrderRefused, Unusable

FileKind = Literal["png", "jpeg", "webp"]  # of files that are written


@dataclass(frozen=True, slots=True)
class Allow:
    """First message to a codec: the size limit of pictures. The codec's memory limit follows from it."""

    max_pixels: int  # width x height


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The size constraints for a picture."""

    width: int  # the exact size, or a size with the desired number of pixels
    height: int
    exact: bool  # use this width and height; else the picture keeps its shape as closely as possible
    multiple_of: int = 1  # of each side
    min_side: int = 1
    max_side: int = 1 << 16
    max_pixels: int = 1 << 32
    enlarge: bool = True  # otherwise a picture with fewer pixels than the desired number keeps its size


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """An uploaded file and an optional mask."""

    image: bytes
    mask: bytes = b""  # empty: none
    fit: Fit
    own_mask: bool = False  # use the image's transparent areas as the mask, if it has no other
    gif: bool = False  # whether a GIF is read, too: its first frame
    param: str = "image"  # the caller's name of the image, for errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Encode:
    """A picture to write."""

    width: int
    height: int
    pixels: bytes  # rows of RGB uint8
    kind: FileKind
    quality: int  # 0 to 100, of jpeg and webp
    texts: dict[str, str]  # metadata of a PNG; other formats get none


@dataclass(frozen=True, slots=True)
class DecodedPicture:
    """The decoded picture, upright and scaled."""

    width: int
    height: int
    pixels: bytes  # rows of RGB uint8
    mask: bytes | None  # rows of uint8: 255 where the image is drawn over, 0 elsewhere; None: everywhere


@dataclass(frozen=True, slots=True)
class EncodedPicture:
    """An encoded file."""

    data: bytes


ToCodec = Allow | Decode | Encode
FromCodec = ChildReady | Unusable | Begun | DecodedPicture | EncodedPicture | OrderRefused
