"""The token budget of a step, measured from two steps on a machine with a fake clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from services.text.engine import token_budget as module
from services.text.engine.messages import EngineOptions
from services.text.engine.sampling import SamplingParams
from services.text.engine.sequence import Sequence
from services.text.engine.token_budget import LEAST_CHUNK, RECENT, EvenGaps, share_out, step_pace, step_tokens

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


ANSWERS, TOKEN = 0.06, 0.001  # seconds of a step's answers, and of one prompt token


def computed(even: EvenGaps, prompt_tokens: int) -> float:
    """Records a step of eight answers, and returns its time."""
    seconds = ANSWERS + TOKEN * prompt_tokens
    even.took(8, prompt_tokens, seconds)
    return seconds


def started() -> EvenGaps:
    even = EvenGaps()
    assert even.limit == LEAST_CHUNK
    even.took(0, 143, 143 * TOKEN)
    return even


def test_steps_with_prompts_take_at_most_three_times_as_long_as_others() -> None:
    even = started()
    steps = [computed(even, even.limit if number % 3 == 0 else 0) for number in range(4 * RECENT)]
    assert 2 * ANSWERS < max(steps) <= 3 * ANSWERS


def test_steps_grow_where_most_compute_prompts_and_shrink_again() -> None:
    even = started()
    steps = [computed(even, even.limit) for _ in range(RECENT // 4)]
    assert max(steps) <= 3 * ANSWERS, "not at once"
    for _ in range(2 * RECENT):
        computed(even, min(even.limit, 512))
    assert even.limit >= 512
    for _ in range(RECENT):
        computed(even, 0)
    assert computed(even, even.limit) <= 3 * ANSWERS


def test_a_slow_machine_gets_small_parts_that_are_still_worth_a_step() -> None:
    even = EvenGaps()
    even.took(0, 64, 6.4)
    for _ in range(8):
        even.took(1, 0, 0.1)
    assert even.limit == LEAST_CHUNK


def test_a_small_budget_is_not_divided_and_is_the_oldest_prompts_in_every_fourth_step() -> None:
    prompts = [Sequence(at, "a", [1] * length, SamplingParams()) for at, length in enumerate((2000, 150, 140, 20))]
    for at, prompt in enumerate(prompts):
        prompt.arrival = at
    oldest, _, short, tiny = prompts
    taken = [share_out(prompts, 80, lambda _: False, turn) for turn in range(4)]
    assert taken == [[(oldest, 80)], *[[(tiny, 20), (short, 60)]] * 3]
    assert share_out(prompts[:3], 80, lambda _: False, 1) == [(short, 80)]
    assert share_out(prompts[:3], 150, lambda _: False, 1) == [(short, 140)], "ten tokens of another are too few"
