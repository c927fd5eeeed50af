"""The token budget of a step, measured from two steps on a machine with a fake clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from services.text.engine import token_budget as module
from services.text.engine.messages import EngineOptions
from services.text.engine.token_budget import step_pace, step_tokens

CONTEXT = 4096


def options(*, gpu: bool = False, batch_tokens: int = 2048) -> EngineOptions:
    return EngineOptions(
        model_id="m",
        path="",
        threads=2,
        gpu=gpu,
        context_tokens=CONTEXT,
        kv_tokens=CONTEXT,
        max_sequences=8,
        batch_tokens=batch_tokens,
        chunk_tokens=256,
        prefix_cache=True,
    )


class Machine:
    """A fake machine: `seconds` per token, and 60 seconds more for the first step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self._now = 0.0
        self._seconds = seconds
        self.computed: list[int] = []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self._now))

    def compute(self, tokens: int) -> None:
        self._now += tokens * self._seconds + (0 if self.computed else 60)
        self.computed.append(tokens)


@pytest.mark.parametrize(
    ("given", "most"),
    [
        (options(), 512),
        (options(batch_tokens=128), 128),
        (options(gpu=True), 2048),
        (options(gpu=True, batch_tokens=128), 128),
    ],
)
def test_a_fast_machine_computes_as_many_as_it_may(
    monkeypatch: pytest.MonkeyPatch, given: EngineOptions, most: int
) -> None:
    assert step_tokens(given) == most
    assert step_pace(given, CONTEXT, Machine(monkeypatch, 1e-4).compute).limit == most


@pytest.mark.parametrize(("seconds", "most"), [(0.02, 128), (0.1, 32), (10.0, 16)])
def test_a_slow_one_fewer_and_its_first_step_does_not_count(
    monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    machine = Machine(monkeypatch, seconds)
    assert step_pace(options(), CONTEXT, machine.compute).limit == most
    assert machine.computed == [16, 64]


def test_a_short_context_is_not_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 1e-4)
    step_pace(options(), 40, machine.compute)
    assert machine.computed == [16, 39]
