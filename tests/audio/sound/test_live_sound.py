"""Audio that is decoded while it arrives: early, with little delay, and as far as the stream allows."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from services.audio.sound.source import LiveFeed, RawSound
from services.errors import InvalidRequest
from tests.audio.sound.pool import Pool, read_all
from tests.audio.sound.sound_files import FILES, encoded, likeness, sweep, to_int16, wav
from tests.case import case

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 8.0
STREAMED = ["wav", "mp3", "aac", "ogg", "opus", "flac", "webm", "m4a-faststart", "mp4-fragments"]


async def put_all(feed: LiveFeed, data: bytes, size: int = 1000) -> None:
    for start in range(0, len(data), size):
        await feed.put(data[start : start + size])
    await feed.end()


async def test_a_file_that_comes_in_pieces_is_the_same_as_a_whole_one(pool: Pool) -> None:
    for name in STREAMED:
        with case(name=name):
            feed = LiveFeed(4096)
            async with asyncio.TaskGroup() as group, pool.decoders.open(feed) as sound:
                group.create_task(put_all(feed, encoded(name, SECONDS)))
                decoded = await read_all(sound)
            frame = FILES[name][-1] or 0.001
            value, shift = likeness(decoded, SECONDS)
            assert value > 0.97
            # Decoders learn the encoder delay from a file more often than from a stream.
            assert abs(shift) <= 2 * frame
            assert abs(len(decoded) / 32000 - SECONDS) <= 3 * frame


async def test_sound_is_there_before_half_of_it_has_come(pool: Pool) -> None:
    """Sends no more until something was read: a decoder that waited for the end would never return."""
    for name in STREAMED:
        with case(name=name):
            data = encoded(name, SECONDS)
            feed = LiveFeed()
            async with pool.decoders.open(feed) as sound:
                await feed.put(data[: len(data) // 2])
                async with asyncio.timeout(60):
                    assert await sound.read()
                await feed.end()
                assert await read_all(sound)


@pytest.mark.parametrize("raw", [RawSound(16000), RawSound(8000), RawSound(16000, 1, "f32le"), RawSound(48000, 2)])
async def test_raw_sound_of_a_microphone_comes_back_piece_by_piece(pool: Pool, raw: RawSound) -> None:
    """After each 100 ms of input, most of it is decoded before any more input."""
    samples = sweep(raw.sample_rate)
    samples = samples.astype("<f4") if raw.encoding == "f32le" else to_int16(samples)
    data = np.repeat(samples, raw.channels).tobytes()
    step = raw.sample_rate // 10 * raw.frame_bytes
    feed, decoded = LiveFeed(), b""
    async with pool.decoders.open(feed, raw) as sound, asyncio.timeout(60):
        for start in range(0, len(data), step):
            await feed.put(data[start : start + step])
            while len(decoded) < (start // step + 0.9) * 3200:
                decoded += await sound.read()
        await feed.end()
        decoded += await read_all(sound)
    assert likeness(decoded)[0] > 0.99
    assert abs(len(decoded) - 64000) < 64


async def test_raw_samples_may_be_cut_anywhere(pool: Pool) -> None:
    samples = to_int16(sweep(16000)).tobytes()
    for raw, data in ((RawSound(16000), samples), (RawSound(16000, 2), np.repeat(to_int16(sweep(16000)), 2).tobytes())):
        feed = LiveFeed(2048)
        async with asyncio.TaskGroup() as group, pool.decoders.open(feed, raw) as sound:
            group.create_task(put_all(feed, data, 777))
            assert likeness(await read_all(sound))[0] > 0.99


async def test_raw_sound_that_ends_within_a_sample_is_reported(pool: Pool) -> None:
    feed = LiveFeed()
    await put_all(feed, bytes(33))
    async with pool.decoders.open(feed, RawSound(16000)) as sound:
        assert await sound.read() == bytes(32)
        with pytest.raises(InvalidRequest, match="ends within a sample, after 1 of 2 bytes"):
            await sound.read()


async def refused(pool: Pool, data: bytes) -> str:
    feed = LiveFeed()
    async with asyncio.TaskGroup() as group, pool.decoders.open(feed) as sound:
        group.create_task(put_all(feed, data, 60_000))
        with pytest.raises(InvalidRequest) as caught:
            await read_all(sound)
        await feed.close()
    return caught.value.message


async def test_an_m4a_with_its_index_at_the_end_cannot_be_streamed_and_says_so(pool: Pool) -> None:
    assert "faststart" in await refused(pool, encoded("m4a", SECONDS))


async def test_stream_without_sound_is_refused_while_it_arrives(pool: Pool) -> None:
    assert "Supported formats: wav" in await refused(pool, b"Dear sir or madam,\n" * 500)
    assert "the file is empty" in await refused(pool, b"")


async def test_a_stream_that_is_only_noise_of_bytes_comes_to_an_end(pool: Pool) -> None:
    """Megabytes without audio: the decoder gives up before the end, because the stream may have none."""
    data = encoded("mp3") + bytes(20_000_000)
    feed = LiveFeed()
    async with asyncio.TaskGroup() as group, pool.decoders.open(feed) as sound:
        putting = group.create_task(put_all(feed, data, 60_000))
        with pytest.raises(InvalidRequest, match="contain no audio"):
            await read_all(sound)
        assert not putting.done()
        await feed.close()


async def test_a_feed_is_let_go_when_its_sound_is_no_longer_read(pool: Pool) -> None:
    feed = LiveFeed(10)
    async with pool.decoders.open(feed, RawSound(8000)):
        await feed.put(bytes(20))
        putting = asyncio.create_task(feed.put(bytes(20)))
    async with asyncio.timeout(60):
        await putting


async def test_more_sound_than_allowed_ends_a_feed_with_both_numbers(pool: Pool) -> None:
    for raw in (RawSound(16000), RawSound(8000)):
        feed = LiveFeed()
        async with asyncio.TaskGroup() as group, pool.decoders.open(feed, raw) as sound:
            group.create_task(put_all(feed, bytes(2 * 3601 * raw.sample_rate), 1 << 20))
            with pytest.raises(InvalidRequest, match="over 3600 seconds long: at most 3600 seconds"):
                await read_all(sound)


async def test_a_wav_of_unknown_length_is_streamed(pool: Pool) -> None:
    samples = to_int16(sweep(16000, SECONDS)).tobytes()
    feed = LiveFeed()
    async with asyncio.TaskGroup() as group, pool.decoders.open(feed) as sound:
        group.create_task(put_all(feed, wav(samples, length=2**32 - 1)))
        assert await read_all(sound) == samples
