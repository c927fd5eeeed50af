"""Decoding of uploaded pictures to pixels: the codec's own code, without a process."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from PIL import Image

from services.pictures.codec import kind_of, read, size_of
from services.pictures.messages import Decode, DecodedPicture, Fit
from services.sandbox.child import Refusal
from tests.case import case
from tests.pictures.picture_files import BLUE, RED, file, halves, png_header, webp_header

MAX_PIXELS = 1_000_000
EXACT = Fit(width=64, height=32, exact=True)


def decoded(image: bytes, mask: bytes = b"", fit: Fit = EXACT, *, own_mask: bool = True) -> DecodedPicture:
    return read(Decode(image=image, mask=mask, fit=fit, own_mask=own_mask), MAX_PIXELS)


def pixel(picture: DecodedPicture, x: int, y: int) -> tuple[int, ...]:
    start = 3 * (y * picture.width + x)
    return tuple(picture.pixels[start : start + 3])


def near(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return all(abs(a - b) <= 8 for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("JPEG", {"quality": 95}), ("WEBP", {"lossless": True}), ("WEBP", {})]
)
def test_all_kinds_are_read(kind: str, options: dict[str, Any]) -> None:
    data = file(halves(), kind, **options)
    assert (kind_of(data), size_of(data)) == (kind, None if kind == "JPEG" else (64, 32))
    found = decoded(data)
    assert (found.width, found.height, len(found.pixels), found.mask) == (64, 32, 64 * 32 * 3, None)
    assert near(pixel(found, 4, 16), RED)
    assert near(pixel(found, 60, 16), BLUE)


def test_pixels_of_a_picture_that_has_the_size_are_not_touched() -> None:
    noise = Image.effect_noise((64, 32), 100).convert("RGB")
    assert decoded(file(noise)).pixels == noise.tobytes()


def test_every_mode_becomes_rgb() -> None:
    for mode in ["L", "P", "LA", "1", "CMYK", "I;16", "RGBA"]:
        with case(mode=mode):
            image = (
                Image.new("I;16", (64, 32), 0xFFFF)
                if mode == "I;16"
                else Image.new("RGB", (64, 32), "white").convert(mode)
            )
            found = decoded(file(image, "JPEG" if mode == "CMYK" else "PNG"))
            assert near(pixel(found, 32, 16), (255, 255, 255))


def test_a_picture_that_lies_on_its_side_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    lying = halves(32, 64)  # landscape: the left half is red
    found = decoded(file(lying, "JPEG", exif=exif, quality=95), fit=EXACT)
    assert near(pixel(found, 32, 2), RED)
    assert near(pixel(found, 32, 29), BLUE)


def test_another_shape_is_cut_at_its_edges_not_squeezed() -> None:
    image = Image.new("RGB", (128, 32), RED)
    image.paste(BLUE, (32, 0, 96, 32))
    found = decoded(file(image))
    assert {pixel(found, x, 16) for x in (2, 32, 61)} == {BLUE}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((640, 640), (64, 64)),
        ((1280, 640), (88, 48)),
        ((100, 1000), (32, 128)),
        ((8, 8), (64, 64)),
        ((63, 64), (64, 64)),
    ],
)
def test_without_a_size_the_shape_stays_and_the_limits_hold(given: tuple[int, int], found: tuple[int, int]) -> None:
    fit = Fit(width=64, height=64, exact=False, multiple_of=8, min_side=32, max_side=128, max_pixels=4608)
    image = decoded(file(Image.new("RGB", given)), fit=fit)
    assert image.width * image.height <= fit.max_pixels
    assert (image.width, image.height) == found


def test_a_picture_is_only_made_smaller_if_that_is_wanted() -> None:
    fit = Fit(width=64, height=64, exact=False, max_pixels=4096, enlarge=False)
    for given, wanted in [((40, 30), (40, 30)), ((64, 64), (64, 64)), ((1, 4000), (1, 4000)), ((256, 64), (128, 32))]:
        with case(given=given):
            noise = Image.effect_noise(given, 100).convert("RGB")
            found = decoded(file(noise), fit=fit)
            assert (found.width, found.height) == wanted
            if wanted == given:
                assert found.pixels == noise.tobytes()
    found = decoded(file(Image.new("RGB", (997, 103))), fit=fit)
    assert 4000 < found.width * found.height <= 4096


def test_the_first_frame_of_a_gif_is_read_where_that_is_wanted() -> None:
    frames = [halves(left=RED, right=BLUE), halves(left=BLUE, right=RED)]
    data = file(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=40)
    assert (kind_of(data), size_of(data)) == ("GIF", (64, 32))
    found = read(Decode(image=data, fit=EXACT, gif=True, param="p"), MAX_PIXELS)
    assert (found.pixels, found.mask) == (halves().tobytes(), None)
    one = bytearray(file(halves(), "GIF"))
    frame = 13 + 3 * 2 ** ((one[10] & 7) + 1)  # after the header and the palette
    assert one[frame] == ord(",")
    one[frame + 5 : frame + 9] = struct.pack("<HH", 2000, 2000)
    for hostile, says in [
        (bytes(one), r"4000000 pixels \(2000x2000\)"),
        (b"GIF89a" + struct.pack("<HH", 9999, 9999) + bytes(20), "99980001 pixels"),
        (data[:60], "damaged"),
        (b"GIF89a", "damaged"),
        (b"<svg/>", "not a PNG, JPEG, WebP or GIF file"),
    ]:
        with case(says=says):
            with pytest.raises(Refusal, match=f"'p' .*{says}") as caught:
                read(Decode(image=hostile, fit=EXACT, gif=True, param="p"), MAX_PIXELS)
            assert caught.value.param == "p"


# --- Masks


def test_transparent_areas_of_a_mask_are_redrawn() -> None:
    mask = file(halves(left=(9, 9, 9, 0), right=(9, 9, 9, 255)))
    found = decoded(file(halves()), mask)
    assert found.mask == (b"\xff" * 32 + b"\0" * 32) * 32


def test_an_images_own_transparent_areas_are_its_mask_only_where_that_is_wanted() -> None:
    image = file(halves(left=(255, 0, 0, 0), right=(0, 0, 255, 255)))
    edited, varied = decoded(image), decoded(image, own_mask=False)
    assert edited.mask == (b"\xff" * 32 + b"\0" * 32) * 32
    assert varied.mask is None
    assert pixel(varied, 4, 4) == (255, 255, 255), "what cannot be seen is white"
    assert decoded(file(halves(left=(*RED, 255), right=(*BLUE, 255)))).mask is None


def test_a_mask_is_scaled_with_its_image_and_stays_sharp() -> None:
    mask = file(halves(640, 320, (0, 0, 0, 0), (0, 0, 0, 255)))
    found = decoded(file(halves(640, 320)), mask)
    assert found.mask is not None
    assert set(found.mask) == {0, 255}
    assert found.mask[:30] == b"\xff" * 30


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (halves(32, 32, (0, 0, 0, 0), (0, 0, 0, 255)), "32x32 pixels;.*64x32"),
        (halves(), "no alpha channel"),
        (halves(left=(0, 0, 0, 255), right=(0, 0, 0, 255)), "no transparent area"),
    ],
)
def test_a_mask_without_effect_is_refused(mask: Image.Image, says: str) -> None:
    with pytest.raises(Refusal, match=says) as caught:
        decoded(file(halves()), file(mask))
    assert caught.value.param == "mask"


# --- Hostile files


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("JPEG", {"progressive": True}), ("WEBP", {})])
def test_files_with_flaws_are_read_or_refused(kind: str, options: dict[str, Any]) -> None:
    noise = Image.effect_noise((64, 32), 100).convert("RGB")
    whole = file(noise, kind, **options)
    chance = random.Random(kind)  # noqa: S311
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            assert decoded(bytes(data[: chance.randrange(len(data) // 2, len(data) + 1)])).width == 64
        except Refusal as refusal:
            refused += 1
            assert refusal.message.startswith("'image' ")
    assert refused


def test_a_hostile_file_is_refused_with_the_reason() -> None:
    for data, says in [
        (b"GIF89a" + bytes(100), "not a PNG, JPEG or WebP"),
        (file(halves(), "GIF"), "not a PNG, JPEG or WebP"),
        (b"<svg/>", "not a PNG, JPEG or WebP"),
        (png_header(10_000, 10_000), r"100000000 pixels \(10000x10000\); at most 1000000"),
        (png_header(2**31 - 1, 2**31 - 1), "ALLM_MAX_IMAGE_PIXELS"),
        (png_header(0, 5), "damaged"),
        (webp_header(16_384, 16_384), "268435456 pixels"),
        (file(Image.new("RGB", (2000, 1000)), "JPEG"), "2000000 pixels"),
        (png_header(900, 900), "damaged"),
        (file(halves())[:-30], "damaged"),
        (file(halves(), "JPEG")[:300], "damaged"),
        (webp_header(64, 32), "damaged"),
        (b"\xff\xd8\xff", "damaged"),
        (b"\x89PNG\r\n\x1a\n", "damaged"),
    ]:
        with case(data=data, says=says):
            for image, mask, param in ((data, b"", "image"), (file(halves()), data, "mask")):
                with pytest.raises(Refusal, match=says) as caught:
                    decoded(image, mask)
                assert caught.value.param == param
