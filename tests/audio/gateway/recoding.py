"""Recordings re-encoded in other file formats."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import av
import numpy as np

RATE = 16000
# Name -> container, encoder, rate
KINDS = {
    "wav": ("wav", "pcm_s16le", 16000),
    "mp3": ("mp3", "libmp3lame", 44100),
    "m4a": ("ipod", "aac", 44100),
    "ogg": ("ogg", "libopus", 48000),
    "flac": ("flac", "flac", 16000),
    "webm": ("webm", "libopus", 48000),
}
BLOCK = 480_000  # samples per encoder call


def samples_of(path: Path) -> np.ndarray:
    """Returns a recording as int16 samples at 16 kHz, one channel."""
    resampler = av.AudioResampler("s16", "mono", RATE)
    with av.open(str(path)) as file:
        frames = [out for frame in (*file.decode(audio=0), None) for out in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def encoded(kind: str, blocks: Iterable[np.ndarray]) -> bytes:
    """Encodes int16 samples at 16 kHz, given in blocks, as a file."""
    container, codec, rate = KINDS[kind]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout="mono")
        resampler = av.AudioResampler(stream.format.name, "mono", rate)
        at = 0
        for block in blocks:
            for start in range(0, len(block), BLOCK):
                piece = np.ascontiguousarray(block[start : start + BLOCK])
                frame = av.AudioFrame.from_ndarray(piece[None, :], "s16", "mono")
                frame.sample_rate, frame.pts = RATE, at
                at += len(piece)
                for resampled in resampler.resample(frame):
                    output.mux(stream.encode(resampled))
        for resampled in resampler.resample(None):
            output.mux(stream.encode(resampled))
        output.mux(stream.encode(None))
    return buffer.getvalue()
