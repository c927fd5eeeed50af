"""Pictures of conversations: what becomes pixels, and what is refused, with real codec processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from PIL import Image

from services.auth.caller import Caller, keep_caller
from services.auth.identity import INFERENCE, Identity
from services.errors import AllmError, InvalidRequest, Overloaded, RequestTooLarge
from services.pictures.image_files import ImageFiles
from services.rpc.shares import Shares
from services.settings.settings import load_settings
from services.text import picture_inputs
from services.text.conversation import Detail, Picture
from services.text.picture_inputs import PictureInputs
from tests.case import case
from tests.pictures.picture_files import file, halves, png_header
from tests.pictures.picture_host import picture_host

PUBLIC = "https://ai.example.org"


@asynccontextmanager
async def inputs(home: Path, **environ: str) -> AsyncIterator[PictureInputs]:
    settings = load_settings({"ALLM_HOME": str(home), "ALLM_PUBLIC_URL": PUBLIC, "ALLM_IMAGE_CODECS": "2"} | environ)
    found = PictureInputs(settings.image)
    try:
        yield found
    finally:
        await found.close()


def picture(data: bytes = b"", url: str = "", param: str = "messages[0].content[1].image_url.url") -> Picture:
    return Picture(at=0, param=param, data=data, url=url)


async def refused(pictures: PictureInputs, *given: Picture) -> AllmError:
    with pytest.raises(AllmError) as caught:
        async with pictures.pixels(given):
            pass
    return caught.value


async def test_files_become_pixels_in_their_order(tmp_path: Path) -> None:
    noise = [Image.effect_noise((64 + number, 32), 100).convert("RGB") for number in range(6)]
    kinds = ("PNG", "GIF", "PNG", "PNG", "PNG", "PNG")
    given = [
        picture(file(image, kind), param=f"p{n}") for n, (image, kind) in enumerate(zip(noise, kinds, strict=True))
    ]
    async with inputs(tmp_path) as pictures:
        async with pictures.pixels(given) as found:
            assert [(one.width, one.height, one.param, one.detail) for one in found] == [
                (64 + number, 32, f"p{number}", "auto") for number in range(6)
            ]
            assert [found[n].pixels for n in (0, 2, 3, 4, 5)] == [noise[n].tobytes() for n in (0, 2, 3, 4, 5)]
            assert pictures._room.total == sum(len(one.pixels) for one in found)
        assert pictures._room.total == 0
        async with pictures.pixels(()) as none:
            assert none == ()


async def test_a_large_picture_is_scaled_down_and_keeps_its_shape(tmp_path: Path) -> None:
    data = file(halves(4000, 2000), "JPEG")
    details: tuple[Detail, ...] = ("auto", "low", "high")
    given = [Picture(at=0, param="p", data=data, detail=detail) for detail in details]
    async with inputs(tmp_path) as pictures, pictures.pixels(given) as found:
        for one, side in zip(found, (2048, 512, 2048), strict=True):
            assert one.width * one.height <= side * side < 1.01 * one.width * one.height
            assert abs(one.width / one.height - 2) < 0.01
            assert len(one.pixels) == 3 * one.width * one.height


async def test_what_is_no_picture_or_too_large_is_refused_by_the_name_of_the_picture(tmp_path: Path) -> None:
    async with inputs(tmp_path, ALLM_MAX_IMAGE_BYTES="4096") as pictures:
        for bad, kind, says in [
            (picture(b"<svg/>"), InvalidRequest, "is not a PNG, JPEG, WebP or GIF file"),
            (picture(png_header(9000, 9000)), InvalidRequest, "81000000 pixels"),
            (picture(file(halves())[:-30]), InvalidRequest, "damaged"),
            (picture(bytes(4097)), RequestTooLarge, "ALLM_MAX_IMAGE_BYTES"),
        ]:
            with case(says=says):
                error = await refused(pictures, picture(file(halves()), param="other"), bad)
                assert isinstance(error, kind)
                assert says in error.message
                assert bad.param in error.message
                assert error.param == bad.param
        assert pictures._room.total == 0


async def test_the_pixels_of_a_request_and_of_all_requests_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = picture(file(halves(64, 64)))
    async with inputs(tmp_path) as pictures:
        monkeypatch.setattr(picture_inputs, "MAX_REQUEST_PIXELS", 2 * 64 * 64)
        async with pictures.pixels([one, one]) as found:
            assert len(found) == 2
        error = await refused(pictures, one, one, one)
        assert "8192 pixels together" in error.message
        assert error.param == one.param
        monkeypatch.undo()
        monkeypatch.setattr(pictures, "_room", Shares(5 * 3 * 64 * 64, variable="ALLM_IMAGE_UPLOAD_BYTES"))
        async with pictures.pixels([one] * 3):
            error = await refused(pictures, one, one, one)
            assert isinstance(error, Overloaded)
            assert "ALLM_IMAGE_UPLOAD_BYTES" in error.message
        async with pictures.pixels([one] * 5) as found:
            assert len(found) == 5


async def test_an_address_of_a_drawn_image_is_read_for_its_owner_alone(tmp_path: Path) -> None:
    def be(subject: str) -> None:
        keep_caller(Caller(Identity(subject, scopes=frozenset({INFERENCE}))))

    drawn = file(halves())
    async with inputs(tmp_path) as pictures:
        files = ImageFiles(tmp_path / "images", 1 << 20, PUBLIC)
        await files.start()
        url = await files.keep(drawn, "png", "one")
        await files.close()
        be("one")
        async with pictures.pixels([picture(url=url), picture(url=url.removeprefix(PUBLIC))]) as found:
            assert [one.pixels for one in found] == [halves().tobytes()] * 2
        be("other")
        for bad in (url, f"{PUBLIC}/v1/images/files/../secret", f"{PUBLIC}/v1/images/files/{'a' * 32}.png"):
            with case(url=bad):
                error = await refused(pictures, picture(url=bad))
                assert (type(error), error.param) == (InvalidRequest, picture().param)
                assert "has expired" in error.message


async def test_an_address_of_an_allowed_host_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with picture_host(tmp_path, monkeypatch, file(halves())) as host:
        url = f"https://127.0.0.1:{host.port}/x.png?size=2"
        async with inputs(tmp_path, ALLM_IMAGE_HOSTS=f"127.0.0.1:{host.port}") as pictures:
            async with pictures.pixels([picture(file(halves(32, 16))), picture(url=url)]) as found:
                assert [one.width for one in found] == [32, 64]
                assert found[1].pixels == halves().tobytes()
            assert pictures._room.total == 0
            assert "404" in (await refused(pictures, picture(url=f"{url[: url.rindex('/')]}/status/404"))).message
        async with inputs(tmp_path) as pictures:
            for bad in (url, "https://ai.example.org/v1/models", "http://ai.example.org/v1/images/files/x"):
                with case(url=bad):
                    error = await refused(pictures, picture(url=bad))
                    assert (type(error), error.param) == (InvalidRequest, picture().param)
        assert host.targets == ["/x.png?size=2", "/status/404"]


async def test_a_caller_that_leaves_frees_its_place_and_its_memory(tmp_path: Path) -> None:
    async with inputs(tmp_path) as pictures:
        given = [picture(file(halves()))] * 8

        async def hold() -> None:
            async with pictures.pixels(given):
                raise AssertionError("it was cancelled before")

        task = asyncio.create_task(hold())
        await asyncio.sleep(0)
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        assert pictures._room.total == 0
        async with pictures.pixels(given) as found:
            assert len(found) == 8
