"""Pictures as text: data URLs in base64, and addresses."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from services.errors import InvalidRequest
from services.text import picture_urls
from services.text.picture_urls import data_url, decoded, picture_of
from tests.case import case

FILES = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\0\0\0\0WEBP",
    "application/octet-stream": b"?",
}


async def test_a_file_is_the_same_after_it_was_a_data_url() -> None:
    for kind, start in FILES.items():
        for size in (0, 1, 2, 300_000):  # in one slice, and in several
            with case(kind=kind, size=size):
                file = start + bytes(range(256)) * (size // 256) + bytes(size % 256)
                url = data_url(file)
                assert url.startswith(f"data:{kind};base64,")
                assert len(url) > picture_urls._SLICE or size < 300_000
                picture = picture_of(url, "image", 3, "original")
                assert await decoded(picture) == replace(picture, data=file, url="")
                assert (picture.at, picture.param, picture.detail) == (3, "image", "high")


async def test_other_addresses_and_files_stay() -> None:
    for url in ("https://example.org/x.png", "/v1/images/files/x.png"):
        assert await decoded(picture_of(url, "image", 0)) == picture_of(url, "image", 0)
    found = await decoded(picture_of("DATA:image/png;charset=x;base64,aGk=", "image", 0))
    assert await decoded(found) == found
    assert found.data == b"hi"


async def test_bad_addresses_are_refused_by_name() -> None:
    long = base64.b64encode(bytes(300_000)).decode()
    for url in ("", "x.png", "data:", "data:image/png,hi", f"https://{'x' * 9_000}"):
        with case(url=url), pytest.raises(InvalidRequest, match="'images' is") as caught:
            picture_of(url, "images", 0)
        assert caught.value.param == "images"
    for text in ("", "a", "aGk", "aG k=", "aGk=\n", "\u00e9\u00e9\u00e9=", "_-_-", f"{long[:-4]}*{long[-3:]}"):
        with case(text=text[-9:]), pytest.raises(InvalidRequest, match="'images' is") as caught:
            await decoded(picture_of(f"data:;base64,{text}", "images", 0))
        assert caught.value.param == "images"
