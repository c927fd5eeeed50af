"""The pool of decoder processes: concurrency, queue, lost processes, and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from services.audio.sound import decoders as decoders_module
from services.audio.sound.decoders import SoundDecoders
from services.audio.sound.source import LiveFeed, RawSound, Upload
from services.errors import InvalidRequest, Overloaded
from services.sandbox import pool as pool_module
from tests.audio.sound.pool import Pool, decoder_processes, read_all
from tests.audio.sound.sound_files import encoded, likeness, sweep, to_int16, wav
from tests.processes import has_ended

LONG = 600.0  # seconds: more than the pipes between service and decoder can buffer


@contextlib.asynccontextmanager
async def running(folder: Path, *, stall_seconds: float = 60, max_seconds: float = 3600) -> AsyncIterator[Pool]:
    decoders = SoundDecoders(
        decoders=1, folder=folder, max_seconds=max_seconds, queue=1, stall_seconds=stall_seconds, spare=1
    )
    await decoders.start()
    try:
        yield Pool(decoders, folder)
    finally:
        await decoders.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (another process changes it)
            await asyncio.sleep(0.01)


def descriptors() -> int:
    return len(entries(Path("/proc/self/fd")))


def entries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def long_file() -> bytes:
    return wav(bytes(int(LONG) * 32000))


async def test_one_process_decodes_file_after_file(tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        (before,) = decoder_processes()
        for name in ("wav", "mp3", "flac"):
            assert likeness(await pool.decode(encoded(name)))[0] > 0.99
        assert pool.decoders.processes == [before.pid]
    assert not decoder_processes()


async def test_files_beyond_the_places_wait_and_beyond_the_queue_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        async with pool.open(long_file()) as first:
            assert await first.read()
            second = asyncio.create_task(pool.decode(encoded("wav")))
            await until(lambda: pool.decoders.pool._turns.waiting == 1)
            with pytest.raises(Overloaded, match=r"1 files are being decoded \(ALLM_AUDIO_DECODERS\) and 1 wait"):
                await pool.decode(encoded("wav"))
            assert not second.done()
            # Raw audio that needs no decoder does not count against the limit.
            assert await pool.decode(bytes(100), RawSound(16000)) == bytes(100)
        async with asyncio.timeout(30):
            assert likeness(await second)[0] > 0.99


async def test_live_feeds_leave_decoders_to_files(tmp_path: Path) -> None:
    """A speaker may pause for an hour, and a file would have to wait for that."""
    decoders = SoundDecoders(decoders=2, folder=tmp_path, max_seconds=60, queue=9, stall_seconds=60, spare=1)
    await decoders.start()
    pool, raw = Pool(decoders, tmp_path), RawSound(48000)
    try:
        for _ in range(2):  # a feed that ends returns its share
            async with decoders.open(LiveFeed(), raw):
                with pytest.raises(Overloaded, match=r"1 live feeds are being decoded.*ALLM_AUDIO_DECODERS"):
                    async with decoders.open(LiveFeed(), raw):
                        pass
                assert await pool.decode(encoded("wav"))
                async with decoders.open(LiveFeed(), RawSound(16000)):
                    pass  # needs no decoder
    finally:
        await decoders.close()


async def test_live_feeds_that_wait_count_and_are_named(tmp_path: Path) -> None:
    """A feed that waits keeps its share, so that it is not refused later."""
    async with running(tmp_path) as pool, pool.open(long_file()) as file:
        assert await file.read()
        waiting = asyncio.create_task(read_feed(pool))
        await until(lambda: pool.decoders.pool._turns.waiting == 1)
        with pytest.raises(Overloaded, match="1 live feeds are being decoded or wait"):
            await read_feed(pool)
        waiting.cancel()
        await asyncio.wait([waiting])


async def read_feed(pool: Pool) -> None:
    async with pool.decoders.open(LiveFeed(), RawSound(8000)):
        pass


async def test_cancelled_wait_leaves_the_queue(tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        async with pool.open(long_file()):
            second = asyncio.create_task(pool.decode(encoded("wav")))
            await until(lambda: pool.decoders.pool._turns.waiting == 1)
            second.cancel()
            await asyncio.wait([second])
            assert pool.decoders.pool._turns.waiting == 0
        assert await pool.decode(encoded("wav"))


async def test_leaving_in_the_middle_leaves_no_process_no_file_and_no_descriptor(tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        await pool.decode(encoded("wav"))
        before_descriptors = descriptors()
        (before,) = decoder_processes()
        for _ in range(3):
            async with pool.open(long_file()) as sound:
                assert await sound.read()
        await until(lambda: bool(pool.decoders.processes))
        (after,) = decoder_processes()
        assert after.pid != before.pid
        assert not psutil.pid_exists(before.pid)
        assert not entries(tmp_path)
        await until(lambda: descriptors() == before_descriptors)  # the loop closes them a moment later


async def test_a_cancelled_reader_leaves_nothing_either(tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        (before,) = decoder_processes()
        feed = LiveFeed()

        async def listen() -> None:
            async with pool.decoders.open(feed, RawSound(8000)) as sound:
                await feed.put(bytes(8000))
                while True:
                    await sound.read()

        listening = asyncio.create_task(listen())
        await until(lambda: len(decoder_processes()) == 1 and not pool.decoders.processes and not feed._waiting)
        listening.cancel()
        await asyncio.wait([listening])
        await until(lambda: not psutil.pid_exists(before.pid) and bool(pool.decoders.processes))
        assert await pool.decode(encoded("wav"))


async def test_the_files_name_is_gone_as_soon_as_it_is_open(tmp_path: Path) -> None:
    async with running(tmp_path) as pool, pool.open(long_file()) as sound:
        assert await sound.read()
        assert not entries(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGXCPU])
async def test_a_decoder_that_dies_costs_its_file_and_nothing_else(tmp_path: Path, number: signal.Signals) -> None:
    async with running(tmp_path) as pool:
        feed = LiveFeed()
        async with pool.decoders.open(feed, RawSound(8000)) as sound:
            await feed.put(bytes(8000))
            assert await sound.read()
            (process,) = decoder_processes()
            process.send_signal(number)
            await feed.put(bytes(8000))
            for _ in range(2):  # the state persists
                with pytest.raises(InvalidRequest, match="crashed the decoder") as caught:
                    await read_all(sound)
            assert caught.value.param == "file"
        assert likeness(await pool.decode(encoded("mp3")))[0] > 0.99


async def test_a_decoder_that_died_while_idle_costs_no_file(tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        (process,) = decoder_processes()
        process.kill()
        await until(lambda: has_ended(process))
        assert likeness(await pool.decode(encoded("mp3")))[0] > 0.99


async def test_a_decoder_without_progress_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, stall_seconds=60) as pool:
        feed = LiveFeed()
        async with pool.decoders.open(feed, RawSound(8000)) as sound:
            await feed.put(bytes(8000))
            assert await sound.read()
            (process,) = decoder_processes()
            process.suspend()
            assert sound._stall_seconds == 60
            monkeypatch.setattr(sound, "_stall_seconds", 1)  # from here on: the start may have been slow
            await feed.put(bytes(8000))
            with pytest.raises(InvalidRequest, match="no audio for 1 seconds"):
                await read_all(sound)
        assert not psutil.pid_exists(process.pid)
        assert await pool.decode(encoded("wav"))


async def test_decoder_that_waits_for_upload_bytes_is_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the decoder's own time counts: a caller may pause for longer."""
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    class Pausing(LiveFeed):
        async def take(self, count: int) -> bytes:
            asked.set()
            return await super().take(count)

    async with running(tmp_path, stall_seconds=60) as pool:
        feed = Pausing()
        async with pool.decoders.open(feed, RawSound(8000)) as sound:
            reading = asyncio.create_task(read_all(sound))
            await asked.wait()
            time = loop.time
            monkeypatch.setattr(loop, "time", lambda: time() + 3600)  # an hour passes
            for _ in range(10):
                await asyncio.sleep(0)
            assert not reading.done()
            await feed.put(bytes(16000))
            await feed.end()
            assert len(await reading) == 32000


async def test_a_file_that_was_refused_costs_the_process(tmp_path: Path) -> None:
    """A process that read a hostile file must not decode another caller's."""
    async with running(tmp_path) as pool:
        (before,) = pool.decoders.processes
        assert await pool.refusal(b"no sound" * 100)
        assert await pool.decode(encoded("wav"))
        assert before not in pool.decoders.processes


async def test_a_process_is_replaced_after_some_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders_module, "PROGRAM", dataclasses.replace(decoders_module.PROGRAM, most_orders=2))
    async with running(tmp_path) as pool:
        used = []
        for _ in range(5):
            async with pool.open(encoded("wav")) as sound:
                (process,) = decoder_processes()
                used.append(process.pid)
                await read_all(sound)
        assert len(set(used)) == 3


async def test_surplus_decoders_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "IDLE_SECONDS", 0.2)
    decoders = SoundDecoders(decoders=3, folder=tmp_path, max_seconds=60, queue=9, stall_seconds=60, spare=1)
    await decoders.start()
    pool = Pool(decoders, tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(pool.open(encoded("wav"))) for _ in range(3)]
        assert len(decoder_processes()) == 3
        for sound in opened:
            await read_all(sound)
    await until(lambda: len(decoder_processes()) == 1)
    assert len(decoders.processes) == 1
    await decoders.close()


async def test_sound_over_the_limit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async with running(tmp_path, max_seconds=1.5) as pool:
        message = await pool.refusal(encoded("flac"))  # the header states the duration: nothing was decoded
        assert "2 seconds long: at most 1.5 seconds" in message
        assert "over 1.5 seconds long: at most 1.5 seconds" in await pool.refusal(encoded("aac"))
        assert "2 seconds long: at most 1.5" in await pool.refusal(to_int16(sweep(8000)).tobytes(), RawSound(8000))
        assert await pool.decode(to_int16(sweep(8000, 1.5)).tobytes(), RawSound(8000))


async def test_start_removes_what_a_crash_left(tmp_path: Path) -> None:
    (tmp_path / f"{'0' * 32}.upload").write_bytes(b"left")
    async with running(tmp_path):
        assert not entries(tmp_path)


async def test_files_are_decoded_at_the_same_time(tmp_path: Path) -> None:
    decoders = SoundDecoders(decoders=3, folder=tmp_path, max_seconds=60, queue=20, stall_seconds=60)
    await decoders.start()
    pool = Pool(decoders, tmp_path)
    names = ["wav", "mp3", "flac", "opus", "m4a", "ogg"] * 2
    for sound in await asyncio.gather(*(pool.decode(encoded(name)) for name in names)):
        assert likeness(sound)[0] > 0.99
    await decoders.close()
    assert not decoder_processes()


async def test_decoders_do_not_outlive_a_service_that_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(  # noqa: ASYNC220 (the first line is all that is waited for)
        [sys.executable, "-m", "tests.audio.sound.decoder_owner", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 2
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    owner.stdout.close()


@pytest.mark.slow
async def test_an_hour_takes_no_more_memory_than_a_minute(tmp_path: Path) -> None:
    """Measures the decoder by its process, and the service by Python's allocations."""
    file = long_flac(3600.0)
    async with running(tmp_path, max_seconds=4 * 3600) as pool:
        await pool.decode(long_flac(60.0))
        (process,) = decoder_processes()
        before = process.memory_info().rss
        samples, peak = 0, 0
        with Upload(tmp_path, 1 << 30) as upload:
            upload.write(file)
            tracemalloc.start()
            try:
                async with pool.decoders.open(upload) as sound:
                    while piece := await sound.read():
                        samples += len(piece) // 2
                        peak = max(peak, process.memory_info().rss)
                ours = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert abs(samples / 16000 - 3600) < 0.1
        assert peak - before < 64 * 2**20  # the audio takes 115 MB
        assert ours < 32 * 2**20


def long_flac(seconds: float) -> bytes:
    """Encodes one second of faint noise, repeated."""
    import io

    import av
    import numpy as np

    second = np.random.default_rng(7).integers(-200, 200, 16000).astype("<i2").tobytes()
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as output:
        stream = output.add_stream("flac", rate=16000, layout="mono")
        for number in range(int(seconds)):
            frame = av.AudioFrame("s16", "mono", 16000)
            frame.sample_rate, frame.pts = 16000, 16000 * number
            frame.planes[0].update(second)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()
