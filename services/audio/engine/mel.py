"""Log-mel spectrograms as in the training of the Whisper models, and the messages that carry them.

The preparation thread sends requests, and their windows as spectrograms, to the batch loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from services.audio.engine.messages import SAMPLE_RATE, Decoding
from services.audio.engine.window import HOP, WINDOW_SAMPLES, Samples, Window, no_samples

FRAME = 400  # samples of one Fourier transform: 25 ms
EDGE = FRAME // 2  # samples that a column reads beyond its position
COLUMNS = WINDOW_SAMPLES // HOP
RANGE = 8.0  # powers of ten below the loudest; fainter sound is clipped
FAINTEST = 1e-10

Mel = NDArray[np.float32]


class LogMel:
    """The spectrograms of one request's windows.

    The reference clips faint sound at a level below the loudest of the whole file. A stream does not know that level:
    this uses the loudest so far, so only windows before the file's loudest may differ, and only in very faint sound.
    """

    def __init__(self, n_mels: int) -> None:
        """`n_mels` is 80 or 128, as in the model; raises ValueError for others."""
        _filters(n_mels)
        self._n_mels = n_mels
        self._loudest = -inf

    def of(self, window: Window) -> Mel:
        """Returns the spectrogram of a window, float32 [n_mels, COLUMNS]. Windows must follow the file's order."""
        powers = _log_powers(window.samples, self._n_mels, window.before, window.after)
        self._loudest = max(self._loudest, float(powers.max(initial=-inf)))
        return _scaled(powers, self._loudest)


def log_mel(samples: Samples, n_mels: int) -> Mel:
    """Returns the spectrogram of a single window: float32 [n <= WINDOW_SAMPLES] to float32 [n_mels, COLUMNS].

    Columns after the sound are 0, as in the reference, which pads the spectrogram and not the sound.
    """
    powers = _log_powers(samples[:WINDOW_SAMPLES], n_mels, no_samples(), no_samples())
    return _scaled(powers, float(powers.max(initial=-inf)))


def _log_powers(samples: Samples, n_mels: int, before: Samples, after: Samples) -> Mel:
    """Returns powers of ten, [n_mels, columns of sound]. The edges use the file's sound, else a mirror and silence."""
    columns = len(samples) // HOP
    if not columns:
        return np.zeros((n_mels, 0), dtype=np.float32)
    left = before[-EDGE:] if len(before) >= EDGE else samples[EDGE:0:-1]
    left = np.concatenate([np.zeros(EDGE - len(left), dtype=np.float32), left])
    sound = np.concatenate([left, samples, after[:EDGE], np.zeros(FRAME, dtype=np.float32)], dtype=np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME)[::HOP][:columns]
    spectrum = np.fft.rfft(frames * _hann(), axis=1)  # [columns, FRAME / 2 + 1]
    powers = np.square(spectrum.real) + np.square(spectrum.imag)
    mel: Mel = _filters(n_mels) @ powers.T.astype(np.float32, copy=False)
    return np.log10(np.maximum(mel, FAINTEST))


def _scaled(powers: Mel, loudest: float) -> Mel:
    mel = np.zeros((len(powers), COLUMNS), dtype=np.float32)
    mel[:, : powers.shape[1]] = (np.maximum(powers, loudest - RANGE) + 4.0) / 4.0
    return mel


@cache
def _hann() -> Samples:
    turns = np.arange(FRAME) / FRAME
    return (0.5 - 0.5 * np.cos(2 * np.pi * turns)).astype(np.float32)


@cache
def _filters(n_mels: int) -> Mel:
    """Returns triangular filters, [n_mels, FRAME / 2 + 1], of equal area, evenly spaced on Slaney's mel scale."""
    if n_mels not in (80, 128):
        raise ValueError(f"Whisper models have 80 or 128 mel bands, not {n_mels}")
    nyquist = SAMPLE_RATE / 2
    corners = _hertz(np.linspace(0.0, float(_mels(nyquist)), n_mels + 2))
    bins = np.linspace(0.0, nyquist, FRAME // 2 + 1)
    low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    triangles = np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (high - low)
    return np.ascontiguousarray(triangles, dtype=np.float32)


# Slaney's scale is linear up to 1000 Hz, which is 15 mels, and then takes 27 mels for each factor of 6.4.


def _mels(hertz: float) -> float:
    return hertz * 15 / 1000 if hertz < 1000 else 15 + 27 * float(np.log(hertz / 1000) / np.log(6.4))


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mels < 15, mels * 1000 / 15, 1000 * np.power(6.4, (mels - 15) / 27))


@dataclass(frozen=True, slots=True)
class RequestOpened:
    """A valid request; its chunks follow."""

    request: int
    client: str
    decoding: Decoding
    prompt: list[int]  # tokens of the caller's prompt
    deadline: float | None = None  # on the monotonic clock; the caller waits no longer


@dataclass(frozen=True, slots=True, eq=False)
class SpectrogramChunk:
    """A window of a request, ready to be encoded."""

    request: int
    number: int  # in the request, from 0; of the future window if `partial`
    mel: Mel  # [n_mels, WINDOW_FRAMES]
    window: Window  # without its samples
    frames: int  # columns of `mel` that hold sound
    partial: bool = False  # the speech is still open
    first: int = 0  # column of the window at which `mel` begins

    def rest(self, columns: int) -> SpectrogramChunk:
        """Returns the chunk without its first `columns` columns."""
        mel = np.zeros_like(self.mel)
        mel[:, : self.frames - columns] = self.mel[:, columns : self.frames]
        return replace(self, mel=mel, frames=self.frames - columns, first=self.first + columns)


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a request's chunks."""

    request: int
    samples: int  # of the request's sound


@dataclass(frozen=True, slots=True)
class Taken:
    """To the preparation: the loop has taken a chunk, so another may follow."""

    request: int
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Seek:
    """To the preparation: the start of the next window in columns of the file, without `vad`."""

    request: int
    frame: int
