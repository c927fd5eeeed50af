"""Prompts that exceed every context are refused before tokenization; all others are tokenized."""

from __future__ import annotations

import pytest

from services.text.engine.__main__ import USUAL_BYTES, _prepare
from services.text.engine.messages import Accepted, Submit
from services.text.engine.sampling import SamplingParams
from services.worker.messages import RequestRefused
from tests.text.engine.counting import Counting
from tests.text.engine.prepared import prepared

CONTEXT = 100


class Long(Counting):
    """A runtime whose longest token has 20 bytes; it records the length of each text that it tokenizes."""

    def __init__(self) -> None:
        super().__init__(1000, context=CONTEXT)
        self.tokenized: list[int] = []

    def piece(self, token: int, special: bool) -> bytes:
        return b"x" * 20 if token == 100 else b"x"

    def tokenize(self, text: str) -> list[int]:
        self.tokenized.append(len(text))
        return [100] * -(-len(text) // 20)


@pytest.mark.parametrize("size", [CONTEXT * USUAL_BYTES, CONTEXT * 20 - 21])
def test_prompts_that_may_fit_are_tokenized(size: int) -> None:
    runtime, sent = Long(), []
    sequence = prepared(_prepare(runtime, Submit(1, "a", "x" * size, SamplingParams(max_tokens=1)), sent.append))
    assert runtime.tokenized == [size]
    assert sequence is not None
    assert isinstance(sent[0], Accepted)


def test_oversized_load_is_refused_with_the_numbers() -> None:
    runtime, sent = Long(), []
    assert prepared(_prepare(runtime, Submit(1, "a", "x" * (CONTEXT * 20), SamplingParams()), sent.append)) is None
    assert runtime.tokenized == []
    (refused,) = sent
    assert isinstance(refused, RequestRefused)
    assert (refused.code, refused.param) == ("CONTEXT_LENGTH_EXCEEDED", "messages")
    assert all(number in refused.message for number in ("2000 bytes", "101 tokens", f"holds {CONTEXT}"))


def test_a_prompt_without_room_for_the_wanted_tokens() -> None:
    for required in (True, False):
        runtime, sent = Long(), []
        asked = Submit(1, "a", "x" * 20, SamplingParams(max_tokens=CONTEXT), room_required=required)
        sequence = prepared(_prepare(runtime, asked, sent.append))
        assert (sequence is None) == required
        assert isinstance(sent[0], RequestRefused if required else Accepted)
