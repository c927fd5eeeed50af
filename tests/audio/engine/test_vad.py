"""The voice activity meter compared with faster-whisper's, on recorded speech."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from faster_whisper.vad import get_vad_model

from services.audio.engine import vad
from services.audio.engine.speech import FRAME
from services.audio.engine.vad import SpeechMeter
from services.audio.engine.window import Samples
from services.worker.messages import EngineError
from tests.audio.engine.recordings import announcement, novel, silence


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
    with pytest.raises(EngineError, match=r"needs faster-whisper.*switch it off") as error:
        SpeechMeter()
    assert error.value.code == "UNSUPPORTED"


def test_the_package_is_not_imported() -> None:
    program = "import sys; from services.audio.engine.vad import SpeechMeter; SpeechMeter()"
    check = "sys.exit(' '.join({'faster_whisper', 'ctranslate2', 'av', 'torch'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", f"{program}; {check}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
