"""Speculation: the tokens are those without it, in fewer steps; it stops where it does not pay."""

from __future__ import annotations

import numpy as np
import pytest

from services.text.engine.speculation import KEPT_CLIENTS, KEPT_TOKENS, MOST_GUESSES, StepCosts, measured_costs
from tests.case import case
from tests.text.engine.counting import END, Counting, Loop, expected, prompt

FREE = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]  # a step takes the same time with any number of tokens
DEAR = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]  # every token takes its own time


class Steady(StepCosts):
    """Costs that no step corrects."""

    def took(self, tokens: int, seconds: float, *, guessing: bool) -> None:
        """Ignores the time of this machine."""


def looped(costs: list[float] | None = FREE, cells: int = 4096, **options) -> Loop:
    return Loop(Counting(cells), costs=Steady(costs) if costs else None, **options)


def predicted(start: list[int], count: int) -> list[int]:
    return list(expected(start, count).encode())


def test_a_right_prediction_takes_few_steps_and_each_token_is_its_own_event() -> None:
    start = prompt(1, 20)
    loop = looped()
    loop.ask(1, [*start], max_tokens=40, prediction=predicted(start, 40))
    loop.until_done(1)
    assert loop.text[1] == expected(start, 40)
    assert [piece.completion_tokens for piece in loop.pieces[1]] == list(range(1, 41))
    assert len(loop.runtime.steps) <= 2 + -(-40 // MOST_GUESSES)
    last = loop.ended[1]
    assert last.accepted_tokens + last.rejected_tokens == loop.counters.drafted
    assert last.accepted_tokens == loop.counters.accepted >= 36
    assert (loop.runtime.used(), loop.runtime.samplers, loop.counters.active_cells) == (0, 0, 0)


def test_a_wrong_guess_costs_no_token_and_no_cell() -> None:
    start = prompt(2, 20)
    right = predicted(start, 30)
    for name, guesses in {
        "wrong from the start": [1] * 30,
        "wrong in the middle": [*right[:9], 1, *right[10:]],
        "shorter": right[:4],
        "longer": [*right, *right],
        "an end": [*right[:5], END, *right[5:]],
        "out of the vocabulary": [*right[:3], 10**6],
    }.items():
        with case(guesses=name):
            loop = looped()
            loop.ask(1, [*start], max_tokens=30, prediction=guesses)
            while 1 not in loop.ended:
                loop.turn()
                assert loop.runtime.used() == loop.counters.active_cells
                assert all(each.computed == loop.runtime.used() for each in loop.loop._running)
            assert loop.text[1] == expected(start, 30)
            assert loop.ended[1].completion_tokens == 30


def test_answers_end_where_they_end_without_guesses() -> None:
    start = prompt(3, 10)
    answer = expected(start, 40)
    for name, asked in {
        "length": {"max_tokens": 7},
        "stop string": {"max_tokens": 40, "stop": (answer[11:14],)},
        "grammar": {"max_tokens": 40, "grammar": answer[:9]},
        "failing grammar": {"max_tokens": 40, "grammar": answer[:9] + "!"},
        "logprobs": {"max_tokens": 12, "logprobs": 0},
    }.items():
        with case(ending=name):
            seen = []
            for costs in (None, FREE):
                loop = looped(costs)
                loop.ask(1, [*start], prediction=predicted(start, 40), **asked)
                loop.until_done(1)
                probabilities = [each for piece in loop.pieces[1] for each in piece.logprobs or ()]
                ends = [(piece.finish, piece.completion_tokens) for piece in loop.pieces[1] if piece.finish]
                seen.append((loop.text[1], ends, probabilities, sorted(loop.refused)))
                assert (loop.runtime.used(), loop.runtime.samplers, loop.counters.active_cells) == (0, 0, 0)
                assert len(loop.runtime.steps) < 10 or costs is None
            assert seen[0] == seen[1]


def test_requests_side_by_side_get_their_own_tokens() -> None:
    """Guesses of some, none of others; a cancelled, a held and a chunked one; few cells, so that some start over."""
    loop = looped(cells=400, chunk=8, cached=64)
    for number in range(8):
        start = prompt(number, 30 + 7 * number)
        guesses = predicted(start, 25) if number % 2 else []
        loop.ask(number, [*start], client=f"c{number % 3}", max_tokens=25, prediction=guesses)
    loop.turn(12)
    loop.cancel(1)
    loop.hold(3)
    loop.turn(5)
    loop.hold(3, False)
    loop.until_done(7)
    for number in (0, 2, 3, 4, 5, 6, 7):
        assert loop.text[number] == expected(prompt(number, 30 + 7 * number), 25), number
    assert loop.counters.accepted > 0
    assert loop.counters.active_cells == 0


def test_cells_that_guesses_would_need_are_not_taken_from_others() -> None:
    start = prompt(4, 40)
    loop = looped(cells=82)
    loop.ask(1, [*start], max_tokens=40, prediction=predicted(start, 40))
    loop.until_done(1)
    assert loop.text[1] == expected(start, 40)
    assert loop.counters.preempted == 0


def test_guesses_that_do_not_pay_are_not_computed() -> None:
    start = prompt(5, 20)
    loop = looped(DEAR)
    loop.ask(1, [*start], max_tokens=30, prediction=predicted(start, 30))
    loop.until_done(1)
    assert loop.text[1] == expected(start, 30)
    assert loop.counters.drafted == 0
    loop = looped([1.0, 1.3, 1.9, 3.1, 5.5, 10.3])
    loop.ask(1, [1, 2] * 40, max_tokens=3)  # "after 1 comes 2" is soon found to be wrong
    loop.ask(2, [*start], max_tokens=30, prediction=[1] * 30)
    loop.until_done(2)
    assert loop.counters.drafted < 20


def test_costs_follow_the_steps_that_run() -> None:
    costs = StepCosts([1.0, 1.1, 1.2, 1.4, 1.8, 2.6])
    assert costs.of(3, guessing=True) == pytest.approx(1.15)
    assert costs.of(64, guessing=True) == pytest.approx(4.2)
    for _ in range(100):
        costs.took(1, 3.0, guessing=False)  # the whole machine is slower: guesses are worth as much
        costs.took(8, 4.2, guessing=True)
    assert costs.of(8, guessing=True) == pytest.approx(1.4, rel=0.01)
    for _ in range(100):
        costs.took(8, 8.4, guessing=True)
    assert costs.of(8, guessing=True) == pytest.approx(2.8, rel=0.01)
    assert costs.of(8, guessing=False) == pytest.approx(1.4)
    for _ in range(1000):
        costs.took(1, 3.0, guessing=False)
    assert costs.of(8, guessing=True) == pytest.approx(1.4, rel=0.01)


def test_earlier_answers_help_the_same_client_unless_it_asks_for_a_seed() -> None:
    start = prompt(6, 20)
    accepted = {}
    for name, client, cached, asked in (
        ("same", "a", 64, {}),
        ("other", "b", 64, {}),
        ("seed", "a", 64, {"seed": 1}),
        ("no cache", "a", 0, {}),
    ):
        loop = looped(cached=cached)
        loop.ask(1, [*start], client="a", max_tokens=40)
        loop.until_done(1)
        before = loop.counters.accepted
        loop.ask(2, [*start], client=client, max_tokens=40, **asked)
        loop.until_done(2)
        assert loop.text[2] == loop.text[1] == expected(start, 40)
        accepted[name] = loop.counters.accepted - before
    assert accepted["same"] > accepted["other"] == accepted["no cache"] >= accepted["seed"]


def test_what_clients_leave_is_bounded() -> None:
    loop = looped(cells=20_000, cached=64)
    for number in range(KEPT_CLIENTS + 3):
        loop.ask(number, [1, number % 90 + 1], client=f"c{number}", max_tokens=2)
    loop.until_done(KEPT_CLIENTS + 3)
    loop.ask(1000, [5] * 10, client="long", max_tokens=KEPT_TOKENS + 100)
    for _ in range(KEPT_TOKENS + 200):
        loop.turn()
        if 1000 in loop.ended:
            break
    answers = loop.loop._speculation._answers
    assert len(answers) == KEPT_CLIENTS
    assert len(answers["long"]) == KEPT_TOKENS


def test_a_model_that_cannot_take_tokens_back_does_not_guess() -> None:
    assert measured_costs(Counting(4096, states=True), 512) is None
    runtime = Counting(4096)
    costs = measured_costs(runtime, 512)
    assert costs is not None
    assert np.isfinite(costs.of(8, guessing=True))
    assert (runtime.used(), runtime.samplers) == (0, 0)
