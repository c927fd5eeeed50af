"""Picture files in separate codec processes: results, and the effects of hostile files."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio
from PIL import Image

from services.errors import InvalidRequest, Overloaded, Timeout
from services.pictures.messages import Decode, Encode, Fit
from services.pictures.pictures import Pictures
from services.settings.settings import load_settings
from tests.pictures.picture_files import BLUE, RED, file, halves, png_header

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIT = Fit(width=64, height=32, exact=True)


def pictures_with(**environ: str) -> Pictures:
    return Pictures(load_settings({"ALLM_IMAGE_CODECS": "2", "ALLM_HOME": "/nowhere"} | environ).image)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pictures() -> AsyncIterator[Pictures]:
    made = pictures_with()
    await made.start()
    yield made
    processes = made.processes
    await made.close()
    assert not any(map(psutil.pid_exists, processes))


def upload(data: bytes, mask: bytes = b"") -> Decode:
    return Decode(image=data, mask=mask, fit=FIT, own_mask=True)


def result(kind: str, quality: int = 100, picture: Image.Image | None = None) -> Encode:
    pixels = (picture or halves()).tobytes()
    texts = {"Software": "allm", "Model": "größe/x"}
    return Encode(width=64, height=32, pixels=pixels, kind=kind, quality=quality, texts=texts)


async def test_an_upload_becomes_pixels_and_a_result_a_file(pictures: Pictures) -> None:
    found = await pictures.decode(upload(file(halves())))
    assert (found.width, found.height, found.pixels) == (64, 32, halves().tobytes())
    for kind in ("png", "jpeg", "webp"):
        image = Image.open(io.BytesIO(await pictures.encode(result(kind))))
        assert (image.format, image.size) == (kind.upper(), (64, 32))
        for x, colour in ((4, RED), (60, BLUE)):
            assert max(abs(a - b) for a, b in zip(image.getpixel((x, 16)), colour, strict=True)) < 8  # type: ignore[arg-type]


async def test_a_png_holds_its_parameters(pictures: Pictures) -> None:
    image = Image.open(io.BytesIO(await pictures.encode(result("png"))))
    image.load()
    assert image.info == {"Software": "allm", "Model": "größe/x"}
    assert image.tobytes() == halves().tobytes()


async def test_less_quality_takes_less_room(pictures: Pictures) -> None:
    for kind in ("jpeg", "webp"):
        noise = Image.effect_noise((64, 32), 100).convert("RGB")
        sizes = [len(await pictures.encode(result(kind, quality, noise))) for quality in (0, 50, 100)]
        assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize(
    ("image", "mask", "param", "says"),
    [
        (png_header(10_000, 10_000), b"", "image", "100000000 pixels"),
        (b"something", b"", "image", "not a PNG, JPEG or WebP"),
        (file(halves()), b"something", "mask", "not a PNG, JPEG or WebP"),
        (file(halves())[:-40], b"", "image", "damaged"),
    ],
)
async def test_bad_file_is_reported_and_no_process_dies(
    pictures: Pictures, image: bytes, mask: bytes, param: str, says: str
) -> None:
    processes = pictures.processes
    with pytest.raises(InvalidRequest, match=says) as caught:
        await pictures.decode(upload(image, mask))
    assert caught.value.param == param
    assert pictures.processes == processes


async def test_the_largest_picture_fits_into_a_codec(pictures: Pictures) -> None:
    """The most memory: an image with alpha and a mask of the same size."""
    large = Image.new("RGBA", (4096, 4096), (255, 0, 0, 0))
    for kind in ("PNG", "WEBP"):
        data = file(large, kind, **({"compress_level": 1} if kind == "PNG" else {"method": 0}))
        found = await pictures.decode(upload(data, data))
        assert found.mask == b"\xff" * 64 * 32


async def test_a_codec_is_confined_and_sees_either_uploads_or_results(pictures: Pictures) -> None:
    reader, writer = pictures.processes
    assert reader != writer
    for process in map(psutil.Process, (reader, writer)):
        for kind in (psutil.RLIMIT_CORE, psutil.RLIMIT_FSIZE, psutil.RLIMIT_NPROC):
            assert process.rlimit(kind) == (0, 0)
        assert process.rlimit(psutil.RLIMIT_NOFILE)[0] == 1
        assert process.rlimit(psutil.RLIMIT_AS)[1] < 2**31


async def test_a_codec_that_has_died_while_it_waited_is_passed_over(pictures: Pictures) -> None:
    dead = pictures.processes[0]
    os.kill(dead, signal.SIGKILL)
    assert (await pictures.decode(upload(file(halves())))).width == 64
    assert dead not in pictures.processes


async def test_more_than_allowed_wait_and_more_than_that_are_refused() -> None:
    pictures = pictures_with(ALLM_IMAGE_CODECS="1", ALLM_IMAGE_QUEUE="1")
    await pictures.start()
    try:
        tasks = [asyncio.create_task(pictures.decode(upload(file(halves())))) for _ in range(3)]
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in done].count(Overloaded) == 1
        assert len(pictures.processes) == 2
    finally:
        await pictures.close()


async def test_one_that_hangs_is_given_up_and_ended() -> None:
    pictures = pictures_with(ALLM_STALL_SECONDS="1")
    await pictures.start()
    try:
        hung = pictures.processes[0]
        os.kill(hung, signal.SIGSTOP)
        with pytest.raises(Timeout):
            await pictures.decode(upload(file(halves())))
        assert not psutil.pid_exists(hung)
    finally:
        await pictures.close()


async def test_a_caller_that_leaves_takes_its_codec_along(pictures: Pictures) -> None:
    stopped = pictures.processes[0]
    os.kill(stopped, signal.SIGSTOP)
    task = asyncio.create_task(pictures.decode(upload(file(halves()))))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not psutil.pid_exists(stopped)
    assert (await pictures.decode(upload(file(halves())))).width == 64
