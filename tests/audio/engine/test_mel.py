"""Spectrograms compared with the reference implementation, on recorded speech."""

from __future__ import annotations

import numpy as np
import pytest

from services.audio.engine.mel import COLUMNS, LogMel, log_mel
from services.audio.engine.window import HOP, WINDOW_SAMPLES, Samples
from services.audio.engine.window_planner import WholeWindowPlanner
from tests.audio.engine.recordings import announcement, novel
from tests.case import case
from tests.late import late

whisper = late("whisper")


def reference(samples: Samples, n_mels: int) -> Samples:
    """Computes the spectrogram as `whisper.transcribe` does: it pads with 30 s of silence and drops those columns."""
    mel = whisper.log_mel_spectrogram(samples, n_mels, padding=WINDOW_SAMPLES)
    return np.asarray(mel[:, : len(samples) // HOP], dtype=np.float32)


def padded(mel: Samples) -> Samples:
    return np.asarray(whisper.pad_or_trim(mel, COLUMNS))


def test_one_window_is_the_reference_s() -> None:
    for n_mels in [80, 128]:
        for length in [HOP, 399, 4 * 16000, 100_123, WINDOW_SAMPLES]:
            with case(n_mels=n_mels, length=length):
                samples = announcement()[:length]
                mel = log_mel(samples, n_mels)
                assert (mel.dtype, mel.shape) == (np.float32, (n_mels, COLUMNS))
                np.testing.assert_allclose(mel, padded(reference(samples, n_mels)), atol=1e-4, rtol=0)


def test_samples_beyond_a_window_are_left_out() -> None:
    samples = announcement()
    np.testing.assert_array_equal(log_mel(samples, 80), log_mel(samples[:WINDOW_SAMPLES], 80))


@pytest.mark.parametrize("length", [0, 1, HOP - 1])
def test_less_than_a_column_is_all_padding(length: int) -> None:
    assert not log_mel(np.ones(length, dtype=np.float32), 80).any()


def test_silence_has_no_infinite_numbers() -> None:
    mel = log_mel(np.zeros(32000, dtype=np.float32), 80)
    np.testing.assert_allclose(mel[:, :200], -1.5, atol=1e-6)  # the minimum value
    assert not mel[:, 200:].any()


@pytest.mark.parametrize("n_mels", [0, 40, 81])
def test_only_the_models_sizes_are_made(n_mels: int) -> None:
    with pytest.raises(ValueError, match=f"80 or 128 mel bands, not {n_mels}"):
        LogMel(n_mels)


def test_windows_of_a_file_are_cut_out_of_the_file_s_spectrogram() -> None:
    """Windows agree at their edges too, where a column depends on the samples of the neighbouring windows."""
    samples = np.concatenate([announcement()[:400_000], novel(), novel()[:100_001]])  # the first part is loudest
    whole = reference(samples, 80)
    windows, mels = WholeWindowPlanner(), LogMel(80)
    windows.feed(samples)
    windows.end()
    seeks = []
    for following in (2500, 2513, 5000, None):
        window = windows.ready()
        assert window is not None
        seeks.append(window.seek)
        expected = padded(whole[:, window.seek : window.seek + window.frames])
        np.testing.assert_allclose(mels.of(window), expected, atol=1e-4, rtol=0)
        windows.seek(following or window.seek + window.frames)
    assert seeks == [0, 2500, 2513, 5000]
    assert windows.done


def test_a_faint_window_is_clipped_below_the_loudest_so_far() -> None:
    faint = np.zeros(WINDOW_SAMPLES, dtype=np.float32)
    faint[::2] = 1e-6
    windows, mels = WholeWindowPlanner(), LogMel(80)
    windows.feed(np.concatenate([announcement()[:WINDOW_SAMPLES], faint]))
    windows.end()
    first = windows.ready()
    assert first is not None
    loud = mels.of(first)
    windows.seek(COLUMNS)
    second = windows.ready()
    assert second is not None
    assert mels.of(second)[:, 10:].max() == pytest.approx(loud.max() - 2.0, abs=1e-6)
    assert LogMel(80).of(second)[:, 10:].max() < loud.max() - 2.0
