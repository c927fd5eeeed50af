"""Real weights in both runtimes and in the reference, on one thread because others may use the machine."""

from __future__ import annotations

from typing import Any

import pytest

from services.audio.engine.runtimes.faster_whisper import FasterWhisper
from tests.audio.engine.reference_tokenizer import reference_tokenizer
from tests.audio.engine.runtimes.spoken import options
from tests.late import late
from tests.whisper_weights import base_ct2, tiny_en_ct2, tiny_en_pt

torch = late("torch")
whisper = late("whisper")
whisper_runtime = late("services.audio.engine.runtimes.whisper")


@pytest.fixture(scope="package")
def openai_whisper() -> whisper_runtime.OpenAIWhisper:
    fractions: list[float] = []
    loaded = whisper_runtime.OpenAIWhisper(options(tiny_en_pt()), fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    return loaded


@pytest.fixture(scope="package")
def faster_whisper() -> FasterWhisper:
    """Loads the weights in full precision, so that results can be compared."""
    return FasterWhisper(options(tiny_en_ct2(), compute_type="float32"), lambda _: None)


@pytest.fixture(scope="package")
def multilingual() -> FasterWhisper:
    return FasterWhisper(options(base_ct2()), lambda _: None)


@pytest.fixture(scope="package")
def reference() -> Any:
    """Loads the same weights into openai-whisper's own model."""
    torch.set_num_threads(1)
    reference_tokenizer(0)  # read here, where the package's unclosed file is not an error
    model = whisper.load_model(str(tiny_en_pt()), device="cpu")
    model.set_alignment_heads(whisper._ALIGNMENT_HEADS["tiny.en"])
    return model
