"""A codec process: one file at a time. Started by the image service as `python -m services.image.pictures.coding FD`.

What a hostile file can do ends here: the process may use little, opens nothing at all, and ends with the service.
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
    # Pillow imports these when a file is of such a kind; by then nothing can be imported any more.
    from PIL import JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

    from services.image.pictures.coding import reading, writing
except ModuleNotFoundError as error:
    MISSING = error.name
else:
    MISSING = None
    PLUGINS = (JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin)

MEMORY_BYTES = 256 * 1024 * 1024  # on top of what the libraries take
BYTES_PER_PIXEL = 24  # a picture, its alpha, its mask, and what their decoders need beside
CPU_SECONDS = 20.0  # for any file: the largest one takes one or two


def main() -> None:
    """Reads and writes files until the service is gone."""
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
    """Does what is ordered, and gives the one message about it."""
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
    """Writes and reads small pictures, so that everything is imported and the first file does not wait."""
    fit = Fit(width=16, height=8, exact=True)
    for kind in ("png", "jpeg", "webp"):
        small = Encode(width=8, height=8, pixels=bytes(192), kind=kind, quality=90, texts={"Software": "allm"})
        reading.read(Decode(image=writing.write(small).data, fit=fit, own_mask=True), 64)


if __name__ == "__main__":
    main()
