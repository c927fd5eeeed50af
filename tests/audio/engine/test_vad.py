"""The voice activity meter compared with faster-whisper's, on recorded speech."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from faster_whisper import vad as reference
from faster_whisper.vad import get_vad_model

from services.audio.engine import vad
from services.audio.engine.messages import VadOptions
from services.audio.engine.vad import FRAME, SpeechDetector, SpeechMeter, Stretch, quietest
from services.audio.engine.window import Samples
from services.worker.messages import EngineError
from tests.audio.engine.recordings import announcement, novel, silence

OPTIONS = [
    VadOptions(),
    VadOptions(silence_ms=2000, padding_ms=400),
    VadOptions(silence_ms=100, padding_ms=30),
    VadOptions(silence_ms=0, padding_ms=0),
    VadOptions(threshold=0.8, silence_ms=160, padding_ms=1000),
]


def measured(samples: Samples, cuts: list[int]) -> Samples:
    meter = SpeechMeter()
    found = [meter.feed(part) for part in np.split(samples, cuts)]
    return np.concatenate([*found, meter.end()])


def test_probabilities_are_the_reference_s() -> None:
    samples = np.concatenate([novel(), silence(2), announcement()[:160_000]])
    whole = samples[: len(samples) // FRAME * FRAME]
    # The reference's last frame is left out: the reference loses the end of it.
    expected = get_vad_model()(whole.copy()).reshape(-1)[:-1]
    np.testing.assert_allclose(measured(whole, [])[:-1], expected, atol=1e-5, rtol=0)
    assert expected.max() > 0.9
    assert expected.min() < 0.1


def test_it_makes_no_difference_how_sound_is_fed() -> None:
    samples = novel()[: 8 * 16000 + 77]
    expected = measured(samples, [])
    assert len(expected) == -(-len(samples) // FRAME)
    rng = np.random.default_rng(11)
    for pieces in (1, 5, 300):
        cuts = np.sort(rng.integers(0, len(samples), pieces)).tolist()  # empty pieces included
        np.testing.assert_allclose(measured(samples, cuts), expected, atol=1e-5, rtol=0)


def test_meters_share_the_model_and_nothing_else() -> None:
    first, second = SpeechMeter(), SpeechMeter()
    alone = measured(novel()[: 50 * FRAME], [])
    mixed = []
    for start in range(0, 50 * FRAME, 10 * FRAME):
        mixed.append(first.feed(novel()[start : start + 10 * FRAME]))
        second.feed(silence(1))
    np.testing.assert_allclose(np.concatenate(mixed), alone, atol=1e-5, rtol=0)


def test_the_end_of_a_whole_frame_adds_none() -> None:
    meter = SpeechMeter()
    assert len(meter.feed(silence(1)[: 3 * FRAME])) == 3
    assert len(meter.end()) == 0


def test_without_the_model_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    vad._session.cache_clear()
    find = importlib.util.find_spec

    def none(name: str) -> importlib.machinery.ModuleSpec | None:
        return None if name == vad.PACKAGE else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", none)
    with pytest.raises(EngineError, match=r"needs the package faster-whisper") as error:
        SpeechMeter()
    assert error.value.code == "UNSUPPORTED"


def test_the_package_is_not_imported() -> None:
    program = "import sys; from services.audio.engine.vad import SpeechMeter; SpeechMeter()"
    check = "sys.exit(' '.join({'faster_whisper', 'ctranslate2', 'av', 'torch'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", f"{program}; {check}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def found(probabilities: Samples, samples: int, options: VadOptions) -> list[tuple[int, int]]:
    detector = SpeechDetector(options)
    stretches = [stretch for value in probabilities.tolist() for stretch in detector.step(value)]
    return [(stretch.start, stretch.end) for stretch in stretches + detector.end(samples)]


def expected(samples: Samples, options: VadOptions) -> list[tuple[int, int]]:
    theirs = reference.VadOptions(
        threshold=options.threshold,
        min_silence_duration_ms=options.silence_ms,
        speech_pad_ms=options.padding_ms,
    )
    return [(stretch["start"], stretch["end"]) for stretch in reference.get_speech_timestamps(samples.copy(), theirs)]


@pytest.mark.parametrize("options", OPTIONS)
def test_real_speech_has_the_reference_s_stretches(options: VadOptions) -> None:
    samples = np.concatenate([silence(1.3), novel(), silence(0.9), announcement(), silence(3.1), novel()[:60_000]])
    meter = SpeechMeter()
    probabilities = np.concatenate([meter.feed(samples), meter.end()])
    stretches = found(probabilities, len(samples), options)
    assert len(stretches) > 1
    assert stretches == expected(samples, options)


@pytest.mark.parametrize("options", OPTIONS)
def test_random_probabilities_have_the_reference_s_stretches(
    options: VadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        frames = int(rng.integers(1, 300))
        levels = np.repeat(rng.random(frames), rng.integers(1, 12, frames))[:frames]
        probabilities = np.clip(levels + rng.normal(0, 0.1, frames), 0, 1).astype(np.float32)
        length = frames * FRAME - int(rng.integers(1, FRAME))
        monkeypatch.setattr(reference, "get_vad_model", lambda p=probabilities: lambda sound: p)
        assert found(probabilities, length, options) == expected(np.zeros(length, dtype=np.float32), options)


def test_stretches_are_sent_as_soon_as_their_padding_is_known() -> None:
    detector = SpeechDetector(VadOptions(silence_ms=96, padding_ms=64))  # 3 frames, 2 frames
    for value in (0, 0, 0, 1, 1):
        assert detector.step(value) == []
    assert detector.open == Stretch(FRAME, 5 * FRAME)
    for _ in range(3):
        assert detector.step(0) == []
        assert detector.open == Stretch(FRAME, 5 * FRAME), "it may only be a pause"
        assert detector.silence == 0
    assert detector.step(0) == [Stretch(FRAME, 7 * FRAME)]
    assert detector.open is None
    assert detector.silence == 4 * FRAME
    assert detector.needed == 7 * FRAME


def test_a_flush_gives_what_waits_for_its_padding() -> None:
    detector = SpeechDetector(VadOptions(silence_ms=32, padding_ms=640))
    for value in (1, 1, 1):
        detector.step(value)
    assert detector.flush() == [], "somebody speaks"
    for value in (0, 0):
        assert detector.step(value) == []
    assert detector.flush() == [Stretch(0, 5 * FRAME)]
    assert detector.flush() == []
    detector.step(1)
    assert detector.open == Stretch(5 * FRAME, 6 * FRAME), "what was given is not given again"


def test_a_cut_leaves_nothing_out_and_the_rest_is_speech_however_short() -> None:
    detector = SpeechDetector(VadOptions(silence_ms=32, padding_ms=32))
    for value in (1, 1, 1, 1):
        detector.step(value)
    assert detector.cut(4 * FRAME - 10) == Stretch(0, 4 * FRAME - 10)
    assert detector.step(0) == []
    assert detector.step(0) == [Stretch(4 * FRAME - 10, 5 * FRAME)]
    with pytest.raises(ValueError, match="no speech"):
        detector.cut(4 * FRAME)


def test_the_quietest_place() -> None:
    samples = np.ones(160_000, dtype=np.float32)
    samples[40_000:48_000] = 0.5
    samples[100_000:106_000] = 0.1
    assert 101_000 <= quietest(samples) <= 105_000
    assert quietest(np.ones(100, dtype=np.float32)) == 50
