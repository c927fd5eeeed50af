"""Audio and images: hostile files for the sandboxed processes that read them, as the services use them."""

from __future__ import annotations

import asyncio
import atexit
import tempfile
from functools import cache
from pathlib import Path

from services.audio.sound.decoders import SoundDecoders
from services.audio.sound.source import LiveFeed, RawSound, Upload
from services.pictures.fetcher import PictureFetcher, Unfetchable
from services.pictures.messages import Decode, DecodedPicture, Fit
from services.pictures.pictures import Codecs
from services.sandbox.child import OrderRefused
from tests.fuzz.fuzz_target import FuzzTarget

MAX_SECONDS = 60.0  # of audio
MAX_PIXELS = 1024 * 1024
STALL_SECONDS = 60.0
SOUND_WORDS = (
    b"RIFF",
    b"WAVEfmt ",
    b"data",
    b"ftyp",
    b"moov",
    b"stsz",
    b"OggS",
    b"fLaC",
    b"ID3",
    b"\x1aE\xdf\xa3",
    b"\xff\xfb",
)
PICTURE_WORDS = (
    b"IHDR",
    b"IDAT",
    b"iCCP",
    b"eXIf",
    b"tRNS",
    b"acTL",
    b"RIFF",
    b"WEBP",
    b"VP8X",
    b"VP8L",
    b"ANIM",
    b"\xff\xc0",
    b"GIF89a",
    b"\x21\xf9\x04",
)
HOSTS = ("a.example", "b.example:8443", "[::1]")
ADDRESS_WORDS = (b"https://", b"a.example", b"b.example:8443", b"[::1]", b"@", b"\\", b"%2f", b"xn--", b"\xe2\x80\xa8")
SIXTEEN = RawSound(44_100, 2)


def _sound(case: bytes) -> None:
    """Reads a byte that chooses the transfer and the format, and a file."""
    if not case:
        return
    how, data = case[0] % 4, case[1:]
    if how == 3:
        _loop().run_until_complete(_live(data, None))
    else:
        raw = {1: SIXTEEN, 2: RawSound(16_000)}.get(how)
        _loop().run_until_complete(_uploaded(data, raw))


async def _uploaded(data: bytes, raw: RawSound | None) -> None:
    with Upload(_folder(), 1 << 24) as upload:
        upload.write(data)
        async with (await _decoders()).open(upload, raw, "name\x00\udcff.wav") as sound:
            taken = 0
            while piece := await sound.read():
                assert not len(piece) % 2, "whole samples"
                taken += len(piece)
            assert taken <= (MAX_SECONDS + 1) * 32_000, "no more sound than is allowed"


async def _live(data: bytes, raw: RawSound | None) -> None:
    feed = LiveFeed()

    async def speak() -> None:
        for at in range(0, len(data), 1000):
            await feed.put(data[at : at + 1000])
        await feed.end()

    speaker = asyncio.create_task(speak())
    try:
        async with (await _decoders()).open(feed, raw) as sound:
            while await sound.read():
                pass
    finally:
        await feed.close()
        await speaker


def _picture(case: bytes) -> None:
    """Reads an option byte, and a file or two: an image, eight times 0xA5, and a mask."""
    if not case:
        return
    how, (image, _, mask) = case[0], case[1:].partition(b"\xa5" * 8)
    if how & 4:  # as the text service reads it
        fit = Fit(width=64, height=32, exact=False, max_pixels=64 * 32, enlarge=False)
    else:
        fit = Fit(width=64, height=32, exact=bool(how & 1), multiple_of=8, min_side=8, max_side=256, max_pixels=64 * 64)
    order = Decode(image=image, mask=mask, fit=fit, own_mask=bool(how & 2), gif=bool(how & 4))
    answer = _loop().run_until_complete(_read(order))
    if isinstance(answer, DecodedPicture):
        assert len(answer.pixels) == 3 * answer.width * answer.height
        assert answer.mask is None or len(answer.mask) == answer.width * answer.height
    else:
        assert isinstance(answer, OrderRefused)
        assert answer.message


def _address(case: bytes) -> None:
    """Reads a caller's address of a picture."""
    try:
        address = _fetcher().checked(case.decode(errors="replace"))
    except Unfetchable as refused:
        assert str(refused)
        return
    assert address.shown in HOSTS
    assert address.target.startswith("/")
    assert address.target.isascii()
    assert address.target.isprintable()
    assert " " not in address.target


@cache
def _fetcher() -> PictureFetcher:
    return PictureFetcher(HOSTS, max_bytes=1, queue=1, seconds=1)


async def _read(order: Decode) -> object:
    return await (await _codecs()).run(order, DecodedPicture)


class _Pools:
    """The child processes of this process, started on first use."""

    decoders: SoundDecoders | None = None
    codecs: Codecs | None = None


async def _decoders() -> SoundDecoders:
    if _Pools.decoders is None:
        _Pools.decoders = SoundDecoders(
            decoders=2, folder=_folder(), max_seconds=MAX_SECONDS, queue=2, stall_seconds=STALL_SECONDS, spare=1
        )
        await _Pools.decoders.start()
    return _Pools.decoders


async def _codecs() -> Codecs:
    if _Pools.codecs is None:
        _Pools.codecs = Codecs(most=1, queue=1, max_pixels=MAX_PIXELS, seconds=STALL_SECONDS)
        await _Pools.codecs.pool.start()
    return _Pools.codecs


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="allm-fuzz-"))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(_end, loop)
    return loop


def _end(loop: asyncio.AbstractEventLoop) -> None:
    async def close() -> None:
        for owner in (_Pools.decoders, _Pools.codecs):
            if owner is not None:
                await owner.pool.close()

    loop.run_until_complete(close())
    loop.close()
    for left in _folder().iterdir():
        left.unlink()
    _folder().rmdir()


MEDIA_TARGETS = (
    FuzzTarget("sound", _sound, words=SOUND_WORDS, longest=64 * 1024, children=True, cases=15),
    FuzzTarget("picture", _picture, words=PICTURE_WORDS, longest=64 * 1024, children=True, cases=150),
    FuzzTarget("picture-address", _address, words=ADDRESS_WORDS, longest=10_000),
)
