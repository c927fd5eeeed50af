"""Decoding in steps of fixed shapes, as a GPU replays them; nothing is recorded here, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.late import late
from tests.text.families.family_checks import EXACT, prompt
from tests.text.families.parity import agree
from tests.text.families.torch_session import TorchSession, alone, ends_of, load

graphs = late("services.text.engine.runtimes.torch.graphs")


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_padded_steps_answer_like_the_usual_ones(family: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(family)
    usual, padded = load(folder), load(folder)
    padded.executor.use_fixed_steps(8, record=False)
    session = TorchSession(padded)
    asked = {number: prompt(length, seed=number) for number, length in enumerate((1, 20, 70, 7, 130))}
    for number, tokens in asked.items():
        session.ask(number, tokens)
        session.turn(2)
    session.finish(*asked)
    for number, tokens in asked.items():
        agree(session.generated(number), alone(usual, tokens), EXACT, ends_of(usual))


def test_only_steps_of_single_tokens_are_fixed(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    run = graphs.DecodeSteps.run

    def recorded(self: graphs.DecodeSteps, batch):
        sizes.append((len(batch.counts), len(batch.tokens)))
        return run(self, batch)

    monkeypatch.setattr(graphs.DecodeSteps, "run", recorded)
    engine = load(llama)
    engine.executor.use_fixed_steps(2, record=False)
    session = TorchSession(engine)
    for number in range(3):
        session.ask(number, prompt(20, seed=number), max_tokens=4 + 4 * number)
    session.finish(0, 1, 2)
    assert sizes
    assert all(spans == tokens <= 2 for spans, tokens in sizes), "three at a time are too many for these"
