"""A codec process: one file at a time. The image service starts it as `python -m services.image.pictures.coding FD`.

This process contains hostile files: it may use few resources, cannot open files, and ends with the service.
"""

from __future__ import annotations

import socket
import sys

from services.image.pictures.coding.messages import (
    Allow,
    Decode,
    Encode,
    Fit,
    FromCodec,
    Refused,
    ToCodec,
)
from services.image.pictures.coding.refusal import Refusal
from services.sandbox import limits as confinement
from services.sandbox.messages import Begun, Ready, Unusable
from services.worker.channel import BlockingChannel, ChannelClosed

try:
    # Pillow imports these when it meets such a file; by then the process can import nothing any more.
    from PIL import JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

    from services.image.pictures.coding import reading, writing
except ModuleNotFoundError as error:
    MISSING = error.name
else:
    MISSING = None
    PLUGINS = (JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin)

MEMORY_BYTES = 256 * 1024 * 1024  # in addition to the libraries' own
BYTES_PER_PIXEL = 24  # a picture, its alpha, its mask, and its decoder's working memory
CPU_SECONDS = 20.0  # per file: the largest takes one or two


def main() -> None:
    """Reads and writes files until the service closes the channel."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    channel: BlockingChannel[ToCodec] = BlockingChannel(sock, ToCodec)
    if MISSING:
        channel.send(Unusable(f"pictures cannot be read here: the Python package {MISSING!r} is not installed"))
        return
    try:
        allowed = channel.receive()
        if not isinstance(allowed, Allow):
            raise SystemExit(f"a {type(allowed).__name__} came in the place of an Allow")
        _warm_up()
        confinement.end_with(sock)
        confinement.confine(MEMORY_BYTES + BYTES_PER_PIXEL * allowed.max_pixels)
        channel.send(Ready())
        while True:
            order = channel.receive()
            channel.send(Begun())
            confinement.allow_cpu(CPU_SECONDS)
            channel.send(_answer(order, allowed.max_pixels))
    except ChannelClosed:
        return


def _answer(order: ToCodec, max_pixels: int) -> FromCodec:
    """Runs an order and returns the answer message."""
    try:
        if isinstance(order, Decode):
            return reading.read(order, max_pixels)
        if isinstance(order, Encode):
            return writing.write(order)
        return Refused(f"a codec has no use for {type(order).__name__}", "")
    except Refusal as refusal:
        return Refused(refusal.message, refusal.param)
    except MemoryError:
        return Refused("the picture needs more memory than a codec may have", "")


def _warm_up() -> None:
    """Writes and reads small pictures, so that all modules are imported before the first file."""
    fit = Fit(width=16, height=8, exact=True)
    for kind in ("png", "jpeg", "webp"):
        small = Encode(width=8, height=8, pixels=bytes(192), kind=kind, quality=90, texts={"Software": "allm"})
        reading.read(Decode(image=writing.write(small).data, fit=fit, own_mask=True), 64)


if __name__ == "__main__":
    main()
