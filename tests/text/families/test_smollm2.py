"""SmolLM2's real weights on the torch runtime: transformers' tokens, and a sensible answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.demo_model import demo_safetensors
from tests.text.families.parity import Reference
from tests.text.families.torch_session import TorchSession, load

if TYPE_CHECKING:
    from services.text.engine.runtimes.torch.engine import SafetensorsEngine


CAPITAL = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
STORY = "Once upon a time there was a fox who lived in the wood near a village, and every morning "
TOKENS = 16


@pytest.fixture(scope="module")
def engine() -> SafetensorsEngine:
    return load(demo_safetensors(), context_tokens=1024, kv_tokens=2048)


@pytest.mark.slow
def test_in_float32_every_token_is_transformers(engine: SafetensorsEngine) -> None:
    reference = Reference(demo_safetensors())
    session = TorchSession(engine)
    for request, prompt in enumerate((CAPITAL, STORY)):
        session.ask_text(request, prompt, max_tokens=TOKENS, ignore_eos=True)
    session.finish(0, 1)
    for request, prompt in enumerate((CAPITAL, STORY)):
        given = engine.tokenize(prompt)
        theirs = reference.generate(given, TOKENS, [token for token in range(64) if engine.is_end(token)])
        text = b"".join(engine.piece(token, special=True) for token in theirs)
        assert session.answers[request].text == text.decode(errors="ignore")


def test_it_knows_the_capital_and_ends(engine: SafetensorsEngine) -> None:
    session = TorchSession(engine)
    session.ask_text(1, CAPITAL)
    session.finish(1)
    assert session.answers[1].text == "The capital of France is Paris."
    assert session.answers[1].pieces[-1].finish == "stop"
