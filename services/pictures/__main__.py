"""A codec process: one file at a time. Services start it as `python -m services.pictures FD`.

This process contains hostile files: it may use few resources, cannot open files, and ends with the service.
"""

from __future__ import annotations

from services.pictures.messages import Allow, Decode, DecodedPicture, Encode, EncodedPicture, Fit, ToCodec
from services.sandbox import child
from services.sandbox.child import Refusal
from services.worker.channel import BlockingChannel

try:
    # Pillow imports these when it meets such a file; by then the process can import nothing any more.
    from PIL import GifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

    from services.pictures import codec
except ModuleNotFoundError as error:
    UNUSABLE = f"images cannot be read here: the Python package {error.name!r} is not installed"
else:
    UNUSABLE = ""
    PLUGINS = (GifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin)

MEMORY_BYTES = 256 * 1024 * 1024  # in addition to the libraries' own
BYTES_PER_PIXEL = 24  # a picture, its alpha, its mask, and its decoder's working memory
CPU_SECONDS = 20.0  # per file: the largest takes one or two
SMALL_GIF = bytes.fromhex("47494638396101000100800000ffffff0000002c00000000010001000002024401003b")


def main() -> None:
    """Reads and writes files until the service closes the channel."""
    child.run(ToCodec, _prepare, UNUSABLE)


def _prepare(channel: BlockingChannel[ToCodec]) -> child.ChildWork:
    allowed = channel.receive()
    if not isinstance(allowed, Allow):
        raise SystemExit(f"a {type(allowed).__name__} came instead of an Allow")
    _warm_up()
    return child.ChildWork(
        memory_bytes=MEMORY_BYTES + BYTES_PER_PIXEL * allowed.max_pixels,
        cpu_seconds=lambda _: CPU_SECONDS,
        answer=lambda order: _answer(order, allowed.max_pixels),
        no_memory="the image needs more memory than a codec is allowed",
    )


def _answer(order: ToCodec, max_pixels: int) -> DecodedPicture | EncodedPicture:
    """Carries out an order. Raises Refusal and MemoryError."""
    if isinstance(order, Decode):
        return codec.read(order, max_pixels)
    if isinstance(order, Encode):
        return codec.write(order)
    raise Refusal(f"a codec has no use for {type(order).__name__}")


def _warm_up() -> None:
    """Writes and reads small pictures, so that all modules are imported before the first file."""
    fit = Fit(width=16, height=8, exact=True)
    for kind in ("png", "jpeg", "webp"):
        small = Encode(width=8, height=8, pixels=bytes(192), kind=kind, quality=90, texts={"Software": "allm"})
        codec.read(Decode(image=codec.write(small).data, fit=fit, own_mask=True), 64)
    codec.read(Decode(image=SMALL_GIF, fit=fit, gif=True), 64)


if __name__ == "__main__":
    main()
