"""Malicious files: they give an error or audio and open nothing else, and the next file is decoded."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

from services.audio.sound.source import LiveFeed
from services.errors import InvalidRequest
from tests.audio.sound.mutations import mutated
from tests.audio.sound.pool import Pool, read_all
from tests.audio.sound.sound_files import FILES, encoded, likeness, wav

on_modules_loop = pytest.mark.asyncio(loop_scope="module")

MUTATIONS = 100  # per format


class Listener:
    """A web server that must not receive a connection."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.calls = 0
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            try:
                called, _ = self._socket.accept()
            except OSError:
                return
            self.calls += 1
            called.close()

    def close(self) -> None:
        """Stops listening."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listening = Listener()
    yield listening
    listening.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Returns another caller's audio file, at a path that ffmpeg could read."""
    path = tmp_path / "secret.wav"
    path.write_bytes(wav(b"\x10\x20" * 16000))
    return path


def hls(target: str) -> bytes:
    return f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{target}\n#EXT-X-ENDLIST\n".encode()


def script(target: str) -> bytes:
    return f"ffconcat version 1.0\nfile '{target}'\n".encode()


def dash(target: str) -> bytes:
    return (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static">'
        f'<Period><AdaptationSet mimeType="audio/mp4"><Representation id="1" bandwidth="1"><BaseURL>{target}</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>"
    ).encode()


def sdp(target: str) -> bytes:
    return f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 {target}\nt=0 0\nm=audio 9 RTP/AVP 0\n".encode()


@pytest.mark.parametrize("playlist", [hls, script, dash, sdp])
@on_modules_loop
async def test_a_playlist_opens_no_file(pool: Pool, secret: Path, playlist: type) -> None:
    for target in (str(secret), secret.as_uri()):
        assert "in an unsupported format" in await pool.refusal(playlist(target), name="a.wav")


@pytest.mark.parametrize("playlist", [hls, script, dash, sdp])
@on_modules_loop
async def test_playlist_opens_no_connection(pool: Pool, listener: Listener, playlist: type) -> None:
    await pool.refusal(playlist(f"http://127.0.0.1:{listener.port}/a.wav"))
    feed = LiveFeed()
    await feed.put(playlist(f"http://127.0.0.1:{listener.port}/a.wav"))
    await feed.end()
    async with pool.decoders.open(feed) as sound:
        with pytest.raises(InvalidRequest):
            await read_all(sound)
    assert listener.calls == 0


@on_modules_loop
async def test_the_playlist_would_work_elsewhere(secret: Path, tmp_path: Path) -> None:
    """Proves that the playlist is valid: otherwise the tests above could pass with a broken one."""
    path = tmp_path / "list.ffconcat"
    path.write_bytes(script(secret.name))
    with av.open(str(path)) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == 16000


def box(kind: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def mov_of_another_file(path: str, count: int) -> bytes:
    """Builds a QuickTime file whose samples are in another file, named by an alias with its absolute path."""
    record = struct.pack(">hH", 2, len(path)) + path.encode() + bytes(len(path) % 2) + struct.pack(">hH", -1, 0)
    alias = bytes(4) + bytes(10) + bytes(28) + bytes(12) + bytes(64) + bytes(16) + bytes(4) + bytes(16) + record
    sound = struct.pack(">6xH8xHHHHI", 1, 1, 16, 0, 0, 16000 << 16)
    table = box(
        b"stbl",
        box(b"stsd", struct.pack(">II", 0, 1), box(b"sowt", sound)),
        box(b"stts", struct.pack(">IIII", 0, 1, count, 1)),
        box(b"stsc", struct.pack(">IIIII", 0, 1, 1, count, 1)),
        box(b"stsz", struct.pack(">III", 0, 2, count)),
        box(b"stco", struct.pack(">III", 0, 1, 44)),
    )
    references = box(b"dref", struct.pack(">II", 0, 1), box(b"alis", alias + bytes(150)))
    handler = struct.pack(">I4s4s12xB", 0, b"mhlr", b"soun", 0)
    media = box(
        b"mdia",
        box(b"mdhd", struct.pack(">IIIIII", 0, 0, 0, 16000, count, 0)),
        box(b"hdlr", handler),
        box(b"minf", box(b"smhd", bytes(8)), box(b"dinf", references), table),
    )
    header = box(b"mvhd", struct.pack(">IIIII", 0, 0, 0, 16000, count) + bytes(80))
    track = box(b"tkhd", struct.pack(">IIIIII", 1, 0, 0, 1, 0, count) + bytes(60))
    return box(b"ftyp", b"qt  ", bytes(4), b"qt  ") + box(b"moov", header, box(b"trak", track, media))


@on_modules_loop
async def test_a_film_that_refers_to_another_file_does_not_give_it(pool: Pool, secret: Path) -> None:
    film = mov_of_another_file(str(secret), 16000)
    assert "nothing in the file can be decoded" in await pool.refusal(film)


@on_modules_loop
async def test_the_reference_would_work_elsewhere(secret: Path, tmp_path: Path) -> None:
    path = tmp_path / "film.mov"
    path.write_bytes(mov_of_another_file(str(secret), 16000))
    options = {"enable_drefs": "1", "use_absolute_path": "1"}
    with av.open(str(path), container_options=options) as container:
        frames = list(container.decode(audio=0))
    assert sum(frame.samples for frame in frames) == 16000
    assert bytes(frames[0].planes[0])[:2] == b"\x10\x20"


@on_modules_loop
async def test_a_table_larger_than_memory_is_refused(pool: Pool) -> None:
    film = mov_of_another_file("/none", 16000)
    for kind in (b"stts", b"stsc", b"stsz", b"stco"):
        at = film.index(kind) + 8
        at += 4 if kind == b"stsz" else 0
        await pool.refusal(film[:at] + b"\x0f\xff\xff\xff" + film[at + 4 :])
    assert likeness(await pool.decode(encoded("wav")))[0] > 0.99


@on_modules_loop
async def test_damaged_files_end_in_an_error_or_in_sound(pool: Pool) -> None:
    """A few of each format, as callers send them: whatever they do to a decoder, the next file is decoded."""
    for name in ("wav", "mp3", "m4a", "ogg", "webm", "flac"):
        data, rng = encoded(name, 0.5), random.Random(name)  # noqa: S311 (the same files each time)
        for _ in range(2):
            try:
                assert len(await pool.decode(mutated(data, rng))) % 2 == 0
            except InvalidRequest as error:
                assert error.param == "file"
    assert likeness(await pool.decode(encoded("mp3")))[0] > 0.99


@pytest.mark.slow
def test_hundreds_of_damaged_files_raise_only_declared_errors() -> None:
    """Decoded one after the other in a separate process that may crash, but may not raise an unexpected exception."""
    for name in FILES:
        command = [sys.executable, "-m", "tests.audio.sound.mutations", str(MUTATIONS), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode <= 0, done.stderr
        if done.returncode == 0:
            decoded, refused = (int(count) for count in done.stdout.split()[1:])
            assert decoded + refused == MUTATIONS
            assert decoded > 0, "the damage is too great to find anything"


@pytest.mark.parametrize(
    "start", [b"", b"ID3\x04\x00\x00\x00\x00\x00\x00", b"RIFF\xff\xff\xff\xffWAVE", b"OggS", b"fLaC"]
)
@on_modules_loop
async def test_random_bytes(pool: Pool, start: bytes) -> None:
    rng = random.Random(start)  # noqa: S311 (the same bytes each time)
    for _ in range(3):
        try:
            await pool.decode(start + rng.randbytes(20000))
        except InvalidRequest as error:
            assert error.param == "file"
    assert likeness(await pool.decode(encoded("mp3")))[0] > 0.99
