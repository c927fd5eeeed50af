"""State reuse in recurrent models: a request takes over whole states of its own client, at the kept positions.

The runtime here refuses to copy a part of a sequence, and its answer is a function of all tokens.
"""

from __future__ import annotations

import random

from services.text.engine.kv_cells import BLOCK
from services.text.engine.prefix_reuse import OPENING, WORTH_KEEPING
from services.text.engine.runtime import LEAST_STATES, MOST_STATES, kept_states
from tests.case import case
from tests.text.engine.counting import Counting, Loop, expected, following, prompt

LONG = 20 * BLOCK  # a prompt long enough for a second state, before its end
SETTLED = LONG - OPENING


def states(cells: int = 8000, *, sequences: int = 4, batch: int = 4096, chunk: int = 512, cached: int = 4000) -> Loop:
    return Loop(Counting(cells, sequences=sequences, states=True), batch=batch, chunk=chunk, cached=cached)


def answered(tokens: list[int], count: int) -> list[int]:
    """Returns a prompt with its answer."""
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(following(tokens))
    return tokens


def cached(loop: Loop, request: int, tokens: list[int], client: str = "a", **params) -> int:
    """Returns the tokens that a request takes over, and checks that it answers as it would alone."""
    loop.ask(request, list(tokens), client, **params)
    loop.until_done(len(loop.ended) + 1)
    assert loop.text[request] == expected(tokens, params.get("max_tokens", 5))
    assert loop.counters.active_cells == 0
    assert loop.runtime.used() <= loop.counters.cached_cells
    return loop.ended[request].cached_tokens


def computed(loop: Loop) -> int:
    return sum(count for step in loop.runtime.steps for _, count in step)


def test_the_next_turn_goes_on_from_the_end_of_the_last() -> None:
    loop = states()
    talk = prompt(1, 50)
    assert cached(loop, 1, talk) == 0
    for turn in range(2, 6):
        before = len(talk) + 4  # the last of the answer's five tokens was not computed
        talk = answered(talk, 5) + prompt(turn, 40)
        assert cached(loop, turn, talk) == before


def test_an_answer_that_is_spelled_otherwise_costs_only_the_end_of_the_prompt() -> None:
    loop = states()
    asked = prompt(1, LONG)
    cached(loop, 1, asked)
    assert cached(loop, 2, [*asked[:-4], 99, 98, 97, *prompt(2, 30)]) == SETTLED


def test_a_prompt_that_is_sent_again_costs_only_its_end() -> None:
    loop = states()
    assert [cached(loop, request, prompt(1, LONG)) for request in (1, 2, 3)] == [0, SETTLED, SETTLED]


def test_a_part_of_a_state_is_not_taken_over() -> None:
    loop = states()
    cached(loop, 1, prompt(1, 60))
    assert cached(loop, 2, [*prompt(1, 60), 99, *prompt(2, 30)]) == 0, "the entry has the answer's tokens too"
    assert cached(loop, 3, prompt(1, 50)) == 0


def test_one_token_is_left_to_compute() -> None:
    loop = states()
    cached(loop, 1, prompt(1, 40))
    whole = answered(prompt(1, 40), 4)
    assert cached(loop, 2, whole, max_tokens=1) == 0
    assert cached(loop, 3, answered(whole, 1)) == len(whole)


def test_state_is_kept_at_the_point_where_prompts_diverge() -> None:
    loop = states()
    common = prompt(5, WORTH_KEEPING)
    found = [cached(loop, request, common + prompt(request, 40)) for request in (1, 2, 3, 4)]
    assert found[0] == found[1] == 0
    assert found[2] == found[3] == len(common)
    assert cached(loop, 5, common[:-BLOCK] + prompt(6, 40)) == 0, "nor a part of that"


def test_common_prefix_is_computed_once() -> None:
    loop = states(sequences=8)
    common = prompt(5, LONG)
    asked = {request: [*common, *prompt(request + 1, 50)] for request in range(8)}
    for request, tokens in asked.items():
        loop.ask(request, list(tokens))
    loop.until_done(8)
    assert computed(loop) == LONG + 8 * (50 + 4)
    for request, tokens in asked.items():
        assert loop.text[request] == expected(tokens, 5)
    assert sorted(loop.ended[request].cached_tokens for request in asked) == [0, *[LONG] * 7]


def test_several_answers_to_one_prompt_compute_it_once() -> None:
    loop = states()
    for request in range(4):
        loop.ask(request, prompt(1, LONG))
    loop.until_done(4)
    assert computed(loop) == SETTLED + 4 * (OPENING + 4)
    assert set(loop.text.values()) == {expected(prompt(1, LONG), 5)}


def test_an_entry_serves_two_that_come_at_the_same_time() -> None:
    loop = states()
    cached(loop, 1, prompt(1, 50))
    talk = answered(prompt(1, 50), 5)
    asked = {2: talk + prompt(2, 20), 3: talk + prompt(3, 30)}
    for request, tokens in asked.items():
        loop.ask(request, list(tokens))
    loop.until_done(3)
    for request, tokens in asked.items():
        assert loop.ended[request].cached_tokens == 54
        assert loop.text[request] == expected(tokens, 5)


def test_waits_for_a_removed_model_end() -> None:
    loop = states(batch=64)
    loop.ask(1, prompt(1, LONG))
    loop.turn()
    loop.ask(2, prompt(1, LONG))
    loop.turn()
    assert computed(loop) == 2 * 64, "the second waits"
    loop.cancel(1)
    loop.until_done(1)
    assert loop.text[2] == expected(prompt(1, LONG), 5)
    assert loop.ended[2].cached_tokens == 2 * 64, "and goes on from where the first was cancelled"
    assert computed(loop) == LONG + 4


def test_states_do_not_cross_clients_or_seeds() -> None:
    loop = states()
    asked = prompt(1, LONG)
    cached(loop, 1, asked, "a")
    assert cached(loop, 2, asked, "b") == 0
    loop.ask(3, list(asked), "b")
    loop.ask(4, list(asked), "a", seed=1)
    loop.ask(5, list(asked), "a")
    loop.until_done(5)
    assert [loop.ended[request].cached_tokens for request in (3, 4, 5)] == [SETTLED, 0, SETTLED]


def test_switched_off_nothing_is_copied() -> None:
    loop = states(cached=0)
    assert [cached(loop, request, prompt(1, LONG)) for request in (1, 2)] == [0, 0]
    assert loop.runtime.copied == loop.runtime.used() == loop.counters.cached_cells == 0
    assert len(loop.runtime.steps) == 2 * 5, "and no prompt stops on its way"


def test_entry_larger_than_the_cache_evicts_nothing() -> None:
    loop = states(cached=200)
    cached(loop, 1, prompt(1, 60))
    cached(loop, 2, prompt(2, LONG))
    assert cached(loop, 3, answered(prompt(1, 60), 5)) == 64


def test_states_go_before_any_request_waits_or_is_refused() -> None:
    loop = states(cells=30 * BLOCK, cached=25 * BLOCK)
    cached(loop, 1, prompt(1, LONG))
    assert loop.counters.cached_cells >= LONG
    assert cached(loop, 2, prompt(2, 28 * BLOCK)) == 0
    assert loop.counters.preempted == 0
    assert not loop.refused


def test_states_are_bounded_and_the_least_recently_used_goes_first() -> None:
    loop = states()
    for request in range(1, 6):
        cached(loop, request, prompt(request, 50))
    held = [sequence for sequence, cells in loop.runtime.cells.items() if cells]
    assert sorted(held) == [4, 5, 6, 7], "the lower ones are for running requests"
    assert cached(loop, 11, answered(prompt(1, 50), 5)) == 0
    assert cached(loop, 15, answered(prompt(5, 50), 5)) == 54


def test_a_session_outlives_other_requests_though_its_answers_are_spelled_otherwise() -> None:
    loop = states()
    talk = prompt(1, LONG)
    cached(loop, 1, talk, cache_key="s")
    for turn in range(2, 6):
        for other in range(4):
            cached(loop, 10 * turn + other, prompt(other + 2, 40 + turn))
        talk = [*talk, *prompt(turn + 9, 30)]
        assert cached(loop, turn, talk, cache_key="s") == SETTLED, "no turn is long enough for a state of its own"


def test_running_requests_are_neighbours() -> None:
    loop = states(sequences=3)
    for request in range(12):
        cached(loop, request, prompt(request, 40))
    for request in range(20, 23):
        loop.ask(request, prompt(request, 40))
    loop.until_done(15)
    assert {sequence for step in loop.runtime.steps for sequence, _ in step} == {0, 1, 2}


def test_requests_that_start_over_lose_nothing() -> None:
    loop = states(cells=200, batch=64, chunk=32, cached=150)
    for request in range(4):
        loop.ask(request, prompt(request, 20), max_tokens=100)
    loop.until_done(4)
    assert loop.counters.preempted > 0
    for request in range(4):
        assert loop.text[request] == expected(prompt(request, 20), 100)


def test_random_histories() -> None:
    """Chats continue, branch, repeat and are cancelled, in little memory: every answer is as it would be alone."""
    for seed in range(6):
        with case(seed=seed):
            rng = random.Random(seed)  # noqa: S311
            loop = states(cells=rng.choice((900, 4000)), batch=64, chunk=32, cached=rng.choice((300, 900)))
            talks = [prompt(at, rng.choice((20, 150, 300))) for at in range(4)]
            asked: dict[int, list[int]] = {}
            gone = 0
            for request in range(60):
                at = rng.randrange(4)
                asked[request] = list(talks[at])
                loop.ask(request, list(talks[at]), f"client {at // 2}", cache_key=rng.choice(("", f"{at}")))
                if len(talks[at]) < 500:
                    cut = rng.choice((0, 0, 3))
                    talks[at] = answered(talks[at], 5)[: len(talks[at]) + 5 - cut] + prompt(rng.randrange(99), 20)
                for _ in range(rng.randrange(12)):
                    if len(loop.ended) < len(asked):
                        loop.turn()
                if request not in loop.ended and rng.random() < 0.2:
                    loop.cancel(request)
                    del asked[request]
                    gone += 1
            loop.until_done(len(asked))
            assert gone
            assert not loop.refused
            for request, tokens in asked.items():
                assert loop.text[request] == expected(tokens, 5), request
            assert sum(piece.cached_tokens for piece in loop.ended.values()) > 0
            assert loop.counters.active_cells == loop.runtime.samplers == 0
            assert loop.runtime.used() <= loop.counters.cached_cells


def test_half_as_many_states_are_kept_as_requests_may_run() -> None:
    assert [kept_states(count) for count in (1, 32, 1000)] == [LEAST_STATES, 16, MOST_STATES]
