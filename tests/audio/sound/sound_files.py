"""Test files of every format: a sweep with known samples at any rate, so that decoded audio can be compared."""

from __future__ import annotations

import struct
import tempfile
from functools import cache
from pathlib import Path

import av
import numpy as np

SECONDS = 2.0
# Name -> container, encoder, rate, layout, container options, largest shift and excess in seconds (one frame)
FILES = {
    "wav": ("wav", "pcm_s16le", 16000, "mono", {}, 0.001),
    "wav-8k": ("wav", "pcm_s16le", 8000, "mono", {}, 0.001),
    "wav-24bit": ("wav", "pcm_s24le", 96000, "stereo", {}, 0.001),
    "wav-u8": ("wav", "pcm_u8", 16000, "mono", {}, 0.001),
    "wav-float": ("wav", "pcm_f32le", 48000, "5.1", {}, 0.001),
    "wav-alaw": ("wav", "pcm_alaw", 8000, "mono", {}, 0.001),
    "mp3": ("mp3", "libmp3lame", 44100, "stereo", {}, 1152 / 44100),
    "m4a": ("ipod", "aac", 44100, "stereo", {}, 1024 / 44100),
    "m4a-faststart": ("ipod", "aac", 44100, "stereo", {"movflags": "faststart"}, 1024 / 44100),
    "mp4-fragments": ("mp4", "aac", 48000, "mono", {"movflags": "frag_keyframe+empty_moov"}, 2048 / 48000),
    "aac": ("adts", "aac", 44100, "mono", {}, 2048 / 44100),
    "ogg": ("ogg", "vorbis", 44100, "stereo", {}, 2048 / 44100),
    "opus": ("opus", "libopus", 48000, "mono", {}, 0.02),
    "webm": ("webm", "libopus", 48000, "stereo", {}, 0.02),
    "flac": ("flac", "flac", 44100, "stereo", {}, 0.001),
    "m4a-alac": ("ipod", "alac", 44100, "mono", {}, 0.001),
}


def sweep(rate: int, seconds: float = SECONDS) -> np.ndarray:
    """Returns a float sweep that starts at 200 Hz, rises 80 Hz per second, and swells three times a second."""
    at = np.arange(round(rate * seconds)) / rate
    return np.sin(2 * np.pi * (200 * at + 40 * at**2)) * (0.25 + 0.2 * np.sin(2 * np.pi * 3 * at))


@cache
def encoded(name: str, seconds: float = SECONDS) -> bytes:
    """Encodes the sweep as a file."""
    container, codec, rate, layout, options, _ = FILES[name]
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / name  # on disk: an index can be moved to the front only in a file that can be read again
    with folder, av.open(str(file), "w", format=container, options=dict(options)) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout)
        stream.codec_context.options = {"strict": "-2"}  # ffmpeg marks its own vorbis encoder as experimental
        channels = stream.codec_context.layout.nb_channels
        samples = np.repeat(to_int16(sweep(rate, seconds)), channels)
        step = 1024 * channels
        for start in range(0, len(samples), step):
            piece = samples[start : start + step]
            frame = av.AudioFrame("s16", layout, len(piece) // channels)
            frame.sample_rate, frame.pts = rate, start // channels
            frame.planes[0].update(piece.tobytes())
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        output.close()
        return file.read_bytes()


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Converts floats from -1 to 1 to int16."""
    return (samples * 32767).round().astype("<i2")


def wav(samples: bytes, *, rate: int = 16000, channels: int = 1, length: int | None = None) -> bytes:
    """Builds a WAV file of int16 samples; `length`, if given, is a false length for its header."""
    stated = len(samples) if length is None else length
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * 2 % 2**32, channels * 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", stated) + samples
    return b"RIFF" + struct.pack("<I", min(stated + 36, 2**32 - 1)) + body


def likeness(decoded: bytes, seconds: float = SECONDS) -> tuple[float, float]:
    """Returns the similarity of decoded audio to the sweep, 0 to 1, and its shift in seconds."""
    got = np.frombuffer(decoded, "<i2").astype(float)
    wanted = sweep(16000, seconds)
    size = 1 << (len(got) + len(wanted)).bit_length()
    match = np.fft.irfft(np.fft.rfft(got, size) * np.conj(np.fft.rfft(wanted, size)), size)
    shift = int(match.argmax())
    value = float(match[shift] / np.sqrt((got**2).sum() * (wanted**2).sum()))
    return value, (shift if shift < size // 2 else shift - size) / 16000
