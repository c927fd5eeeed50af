"""Uploaded files of every format: the decoded audio equals the encoded audio, at 16 kHz in one channel."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from services.audio.sound.source import RawSound
from tests.audio.sound.pool import Pool
from tests.audio.sound.sound_files import FILES, SECONDS, encoded, likeness, sweep, to_int16, wav
from tests.case import case

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_decoded_sound_equals_its_source(pool: Pool) -> None:
    for name in FILES:
        with case(name=name):
            frame = FILES[name][-1]
            sound = await pool.decode(encoded(name))
            value, shift = likeness(sound)
            assert value > 0.99
            assert abs(shift) <= frame
            assert abs(len(sound) / 32000 - SECONDS) <= 2 * frame


async def test_raw_sound_is_what_its_caller_states(pool: Pool) -> None:
    for encoding in ["s16le", "f32le"]:
        for rate, channels in [(16000, 1), (16000, 2), (8000, 1), (44100, 3), (48000, 8)]:
            with case(encoding=encoding, rate=rate, channels=channels):
                samples = to_int16(sweep(rate)) if encoding == "s16le" else sweep(rate).astype("<f4")
                sound = await pool.decode(np.repeat(samples, channels).tobytes(), RawSound(rate, channels, encoding))
                value, shift = likeness(sound)
                assert value > 0.99
                assert abs(shift) < 0.001
                assert abs(len(sound) / 32000 - SECONDS) < 0.001


async def test_raw_sound_that_models_take_as_it_is_is_not_changed(pool: Pool) -> None:
    samples = to_int16(sweep(16000, 30)).tobytes()
    assert await pool.decode(samples, RawSound(16000)) == samples


@pytest.mark.parametrize(
    ("raw", "left"),
    [(RawSound(16000), "1 of 2 bytes"), (RawSound(8000, 2), "1 of 4 bytes")],
)
async def test_raw_sound_that_ends_within_a_sample_is_refused(pool: Pool, raw: RawSound, left: str) -> None:
    assert f"ends within a sample, after {left}" in await pool.refusal(bytes(32001), raw)


async def test_channels_are_mixed_not_picked(pool: Pool) -> None:
    """One side is loud, the other silent: the mix has half the amplitude."""
    stereo = np.stack([np.full(16000, 8000), np.zeros(16000)], axis=1).astype("<i2")
    for data, raw in ((wav(stereo.tobytes(), channels=2), None), (stereo.tobytes(), RawSound(16000, 2))):
        got = np.frombuffer(await pool.decode(data, raw), "<i2")
        assert len(got) == 16000
        assert np.abs(got[100:-100] - 4000).max() <= 1


@pytest.mark.parametrize("channels", [9, 33, 64])
async def test_channels_that_belong_nowhere_are_mixed_alike(pool: Pool, channels: int) -> None:
    """ffmpeg has no layout for this number of channels, and does not mix without one."""
    samples = np.zeros((16000, channels), "<i2")
    samples[:, -1] = 32000
    data = samples.tobytes()
    for file, raw in ((wav(data, channels=channels), None), (data, RawSound(16000, channels))):
        got = np.frombuffer(await pool.decode(file, raw), "<i2")
        assert len(got) == 16000
        assert np.abs(got[100:-100] - 32000 / channels).max() <= 1


@pytest.mark.parametrize("channels", [65, 200])
async def test_hundreds_of_channels_are_refused_by_their_number(pool: Pool, channels: int) -> None:
    assert f"{channels} channels" in await pool.refusal(wav(bytes(2 * channels * 1600), channels=channels))


@pytest.mark.parametrize("rate", [1, 999, 2_000_000_000])
async def test_a_rate_that_no_sound_has_is_refused_by_its_number(pool: Pool, rate: int) -> None:
    assert f"{rate} Hz" in await pool.refusal(wav(bytes(3200), rate=rate))


async def test_an_empty_file_is_refused_as_empty(pool: Pool) -> None:
    assert await pool.refusal(b"") == "the file is empty"
    assert "empty" in await pool.refusal(b"", RawSound(8000))


async def test_a_tag_longer_than_its_file_is_named(pool: Pool) -> None:
    assert "ends within its ID3 tag" in await pool.refusal(b"ID3\x03\x00\x00\x7f\x7f\x7f\x7f" + encoded("mp3"))


async def test_text_named_mp3_is_refused_with_the_supported_formats(pool: Pool) -> None:
    message = await pool.refusal(b"Dear sir or madam,\n" * 500, name="letter.mp3")
    assert message.startswith("letter.mp3: ")
    assert all(name in message for name in ("wav", "mp3", "m4a", "ogg", "opus", "flac", "webm"))


async def test_file_name_does_not_matter(pool: Pool) -> None:
    assert likeness(await pool.decode(encoded("flac"), name="x.mp3"))[0] > 0.99


async def test_a_file_that_is_cut_off_is_decoded_as_far_as_it_goes(pool: Pool) -> None:
    for name in ["mp3", "aac", "ogg", "opus", "flac", "wav", "webm", "m4a-faststart"]:
        with case(name=name):
            data = encoded(name, 8.0)
            sound = await pool.decode(data[: len(data) * 3 // 5])
            assert 0.4 < len(sound) / 32000 / 8.0 < 0.8
            assert likeness(sound, len(sound) / 32000)[0] > 0.95


async def test_an_m4a_that_lost_its_index_is_refused_as_such(pool: Pool) -> None:
    data = encoded("m4a")
    assert "no readable index" in await pool.refusal(data[: len(data) // 2])


async def test_damage_in_the_middle_costs_only_itself(pool: Pool) -> None:
    data = bytearray(encoded("mp3"))
    middle = len(data) // 2
    data[middle : middle + 3000] = bytes(3000)
    sound = await pool.decode(bytes(data))
    assert 0.7 < len(sound) / 32000 / SECONDS <= 1.05


async def test_corrupt_beginning_is_refused(pool: Pool) -> None:
    data = encoded("flac")
    header = 4 + 4 + 34  # the marker and the one mandatory block, whose length is in its first bytes
    message = await pool.refusal(data[:4] + bytes([data[4] | 0x80]) + data[5:header] + bytes(20000))
    assert "corrupt or cut off" in message


async def test_a_header_without_sound_is_refused(pool: Pool) -> None:
    assert "nothing in the file can be decoded" in await pool.refusal(wav(b""))


async def test_a_wav_that_was_written_to_a_pipe_says_no_length(pool: Pool) -> None:
    samples = to_int16(sweep(16000)).tobytes()
    assert await pool.decode(wav(samples, length=2**32 - 1)) == samples


async def test_parts_of_different_rates_are_joined(pool: Pool) -> None:
    """Radio stations' recordings are like this: each part has its own rate."""
    joined = b"".join(wav_frames for wav_frames in (encoded("aac"), _aac_at_16k()))
    sound = await pool.decode(joined)
    assert abs(len(sound) / 32000 - 2 * SECONDS) < 0.3


def _aac_at_16k() -> bytes:
    FILES["aac-16k"] = ("adts", "aac", 16000, "mono", {}, 0.128)
    try:
        return encoded("aac-16k")
    finally:
        del FILES["aac-16k"]


async def test_an_mp3_with_a_large_picture_before_its_sound(pool: Pool) -> None:
    """The picture is larger than the range that a demuxer probes before it gives up."""
    sound = encoded("mp3")
    sound = sound[10 + int.from_bytes(sound[9:10]) + 128 * sound[8] :] if sound[:3] == b"ID3" else sound
    length = 3_000_000
    size = bytes(length >> shift & 0x7F for shift in (21, 14, 7, 0))
    tagged = b"ID3\x04\x00\x00" + size + b"\xff\xfb" * (length // 2) + sound
    assert likeness(await pool.decode(tagged))[0] > 0.99


async def test_a_file_of_tags_alone_is_not_gone_through(pool: Pool) -> None:
    """The data after the first tags does not matter: it is not read."""
    empty = b"ID3\x03\x00\x00\x00\x00\x00\x00"
    assert likeness(await pool.decode(empty * 3 + encoded("mp3")))[0] > 0.99
    assert "Supported formats: wav" in await pool.refusal(empty * 200_000 + encoded("mp3"))


async def test_a_picture_of_a_video_is_not_looked_at(pool: Pool) -> None:
    assert likeness(await pool.decode(with_video()))[0] > 0.99


async def test_a_video_without_sound_is_refused(pool: Pool) -> None:
    assert "this matroska has no audio stream" in await pool.refusal(with_video(sound=False))


async def test_a_codec_that_is_not_decoded_here_is_named(pool: Pool) -> None:
    data = bytearray(encoded("wav"))
    at = data.index(b"fmt ") + 8
    data[at : at + 2] = struct.pack("<H", 0x0160)  # WMA
    assert "wmav1" in await pool.refusal(bytes(data))


def with_video(*, sound: bool = True) -> bytes:
    """Builds a webm file with one grey picture and the sweep."""
    import io

    import av

    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as output:
        video = output.add_stream("mpeg4", rate=25, width=64, height=64, pix_fmt="yuv420p")
        audio = output.add_stream("libopus", rate=48000, layout="mono") if sound else None
        picture = av.VideoFrame(64, 64, "yuv420p")
        for plane in picture.planes:
            plane.update(bytes([128]) * plane.buffer_size)
        for number in range(10):
            picture.pts = number
            output.mux(video.encode(picture))
        output.mux(video.encode(None))
        if audio:
            samples = to_int16(sweep(48000))
            for start in range(0, len(samples), 960):
                frame = av.AudioFrame("s16", "mono", len(samples[start : start + 960]))
                frame.sample_rate, frame.pts = 48000, start
                frame.planes[0].update(samples[start : start + 960].tobytes())
                output.mux(audio.encode(frame))
            output.mux(audio.encode(None))
    return file.getvalue()
