"""Pictures behind URLs: found only by name, deleted when they expire, and bounded in number."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.errors import ImageNotFound, Internal, Overloaded
from services.pictures import image_files
from services.pictures.image_files import ImageFiles
from tests.case import case

PUBLIC = "https://ai.example.org/base"
PATIENCE_SECONDS = 60
OWNER = "key-1"


@asynccontextmanager
async def kept(folder: Path, limit: int = 1000) -> AsyncIterator[ImageFiles]:
    files = ImageFiles(folder, limit, PUBLIC)
    await files.start()
    try:
        yield files
    finally:
        await files.close()


async def test_a_picture_is_found_by_its_address_by_every_replica(tmp_path: Path) -> None:
    async with kept(tmp_path / "new") as one, kept(tmp_path / "new") as other:
        first, second = await one.keep(b"first", "png", OWNER), await one.keep(b"second", "webp", OWNER)
        pattern = rf"{PUBLIC}/v1/images/files/([A-Za-z0-9_-]{{32}}\.(png|webp))"
        names = [re.fullmatch(pattern, url)[1] for url in (first, second)]  # type: ignore[index]
        assert names[0] != names[1]
        assert await other.read(names[0]) == ("image/png", b"first")
        assert await other.read(names[1]) == ("image/webp", b"second")


async def test_a_picture_is_known_by_its_address_and_read_as_an_own_one_only_by_its_owner(tmp_path: Path) -> None:
    async with kept(tmp_path) as files:
        url = await files.keep(b"drawn", "png", OWNER)
        name = files.name_of(url)
        assert name
        assert files.name_of(url.removeprefix(PUBLIC)) == name, "a path alone is on this server, too"
        assert files.name_of(url.replace("ai.", "other.")) is None
        assert await files.read(name, OWNER) == ("image/png", b"drawn")
        assert await files.read(name) == ("image/png", b"drawn")
        for owner in ("key-2", "", "key-1 "):
            with pytest.raises(ImageNotFound):
                await files.read(name, owner)
        (tmp_path / f"{'a' * 32}.png").write_bytes(b"of an earlier release")
        with pytest.raises(ImageNotFound):
            await files.read(f"{'a' * 32}.png", OWNER)


async def test_no_other_name_is_looked_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ["", "..", "../secret", "a" * 32, f"{'a' * 32}.svg", f"{'a' * 32}.png.part", "x\0"]:
        with case(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "secret").write_bytes(b"secret")
            async with kept(tmp_path / "files") as files:
                with pytest.raises(ImageNotFound):
                    await files.read(name)


async def test_expired_entries_are_not_served_and_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = tmp_path / "stranger.png"
    stranger.write_bytes(b"not ours")
    async with kept(tmp_path) as files:
        name = (await files.keep(b"old", "png", OWNER)).rpartition("/")[2]
    left, early = tmp_path / f"{'b' * 32}.png.part", tmp_path / f"{'c' * 32}.png"
    left.write_bytes(b"of a crash")
    early.write_bytes(b"of a clock that was ahead")
    for path in (tmp_path / name, left, stranger):
        os.utime(path, (time.time() - 3700, time.time() - 3700))
    os.utime(early, (time.time() + 4000, time.time() + 4000))
    unswept = ImageFiles(tmp_path, 1000, PUBLIC)
    with pytest.raises(ImageNotFound, match="60 minutes"):
        await unswept.read(name)
    monkeypatch.setattr(image_files, "SWEEP_SECONDS", 0.01)
    async with kept(tmp_path), asyncio.timeout(PATIENCE_SECONDS):
        while sorted(path.name for path in tmp_path.iterdir()) != ["stranger.png"]:  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)


async def test_a_full_folder_takes_no_more_until_something_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "SWEEP_SECONDS", 0.01)
    async with kept(tmp_path, limit=10) as files, asyncio.timeout(PATIENCE_SECONDS):
        name = (await files.keep(bytes(8), "png", OWNER)).rpartition("/")[2]
        with pytest.raises(Overloaded, match="ALLM_IMAGE_FOLDER_BYTES"):
            await files.keep(bytes(8), "png", OWNER)
        os.utime(tmp_path / name, (time.time() - 3700, time.time() - 3700))
        while True:
            try:
                await files.keep(bytes(8), "png", OWNER)
                break
            except Overloaded:
                await asyncio.sleep(0.01)


async def test_unusable_folder_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Internal, match="ALLM_IMAGE_FOLDER"):
        await ImageFiles(tmp_path / "file", 1000, PUBLIC).start()
