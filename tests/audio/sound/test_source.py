"""Uploads and live feeds: limits, back-pressure and cleanup."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from services.audio.sound.source import LiveFeed, RawSound, Upload, remove_abandoned
from services.errors import Internal, InvalidRequest, RequestTooLarge

LEAVE_ONE = """
import os, sys
from pathlib import Path
from services.audio.sound.source import Upload
upload = Upload(Path(sys.argv[1]), 100)
upload.write(b"left")
print(upload.path, flush=True)
sys.stdin.read()
"""


def test_an_upload_holds_the_written_bytes_and_is_deleted_at_the_end(tmp_path: Path) -> None:
    with Upload(tmp_path, 10) as upload:
        upload.write(b"abc")
        upload.write(b"defg")
        assert (upload.size, upload.path.read_bytes()) == (7, b"abcdefg")
        assert (upload.read(3, 2), upload.read(100, 5), upload.read(1, 7)) == (b"cde", b"fg", b"")
        assert upload.path.parent == tmp_path
    assert not list(tmp_path.iterdir())
    upload.close()  # safe to repeat


def test_over_its_limit_an_upload_takes_nothing(tmp_path: Path) -> None:
    with Upload(tmp_path, 10) as upload:
        upload.write(bytes(10))
        with pytest.raises(RequestTooLarge, match="10 bytes") as caught:
            upload.write(b"x")
        assert caught.value.param == "file"
        assert upload.size == 10


def test_only_the_services_user_sees_uploads(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with Upload(folder, 10) as upload:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(upload.path.stat().st_mode) == 0o600
    folder.chmod(0o755)
    with Upload(folder, 10):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_upload_can_be_read_after_its_name_is_gone(tmp_path: Path) -> None:
    with Upload(tmp_path, 10) as upload:
        upload.write(b"abc")
        upload.unlink()
        upload.unlink()
        assert not upload.path.exists()
        assert upload.read(10, 0) == b"abc"


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Internal, match="an upload cannot be stored: "):
        Upload(tmp_path / "file", 10)


def test_uploads_leave_no_descriptors(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        with Upload(tmp_path, 10) as upload:
            upload.write(b"x")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_leftovers_of_a_crash_are_removed_and_used_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "link.upload").symlink_to(tmp_path / "notes.txt")
    command = [sys.executable, "-c", LEAVE_ONE, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with Upload(tmp_path, 10) as ours, subprocess.Popen(command, **pipes) as process:
        assert process.stdout
        theirs = Path(process.stdout.readline().strip())
        assert remove_abandoned(tmp_path) == 0
        assert theirs.exists()
        process.kill()
        process.wait()
        assert theirs.exists()
        assert remove_abandoned(tmp_path) == 1
        assert not theirs.exists()
        assert ours.path.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.upload", "notes.txt"]
    assert remove_abandoned(tmp_path / "missing") == 0


@pytest.mark.parametrize(
    ("param", "raw"),
    [
        ("sample_rate", (0, 1, "s16le")),
        ("sample_rate", (1_000_000, 1, "s16le")),
        ("channels", (16000, 0, "s16le")),
        ("channels", (16000, 65, "s16le")),
        ("encoding", (16000, 1, "s24le")),
    ],
)
def test_raw_sound_that_cannot_be_is_refused_by_name(param: str, raw: tuple[int, int, str]) -> None:
    with pytest.raises(InvalidRequest, match=param) as caught:
        RawSound(*raw)  # type: ignore[arg-type]
    assert caught.value.param == param


def test_only_what_models_take_is_plain() -> None:
    assert RawSound(16000).plain
    assert not any(raw.plain for raw in (RawSound(8000), RawSound(16000, 2), RawSound(16000, 1, "f32le")))
    assert (RawSound(8000, 3).frame_bytes, RawSound(8000, 3, "f32le").frame_bytes) == (6, 12)


async def test_a_feed_returns_its_bytes_in_order() -> None:
    feed = LiveFeed()
    await feed.put(b"abc")
    await feed.put(b"")
    await feed.put(b"de")
    assert (await feed.take(2), await feed.take(100)) == (b"ab", b"cde")
    await feed.put(b"last")
    await feed.end()
    await feed.put(b"late")
    assert [chunk async for chunk in feed.chunks()] == [b"last"]


async def test_a_feed_holds_back_who_is_faster_than_its_reader() -> None:
    feed = LiveFeed(10)
    await feed.put(bytes(15))
    waiting = asyncio.create_task(feed.put(b"more"))
    await asyncio.sleep(0)
    assert await feed.take(5) == bytes(5)
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await feed.take(1) == bytes(1)
    await waiting
    assert await feed.take(100) == bytes(9) + b"more"


async def test_a_reader_waits_for_what_comes() -> None:
    feed = LiveFeed()
    reading = asyncio.create_task(feed.take(10))
    await asyncio.sleep(0)
    assert not reading.done()
    await feed.put(b"x")
    assert await reading == b"x"
    reading = asyncio.create_task(feed.take(10))
    await asyncio.sleep(0)
    await feed.end()
    assert await reading == b""


async def test_abandoned_feed_blocks_no_writer() -> None:
    feed = LiveFeed(1)
    await feed.put(b"abc")
    waiting = asyncio.create_task(feed.put(b"def"))
    await asyncio.sleep(0)
    await feed.close()
    await waiting
    await feed.put(bytes(1000))
    assert await feed.take(10) == b""
