"""The batch loop over a runtime without weights: scheduling, fairness, sharing, memory, cancellation."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from services.text.engine import loop as loop_module
from services.text.engine.kv_cells import BLOCK
from services.text.engine.runtime import TokenSpan
from services.text.engine.token_budget import MOST_SCORED
from services.worker.loop import Pace
from services.worker.messages import Cancel
from tests.text.engine.counting import END, Counting, Loop, expected, prompt


def test_one_request() -> None:
    loop = Loop(Counting(1000))
    loop.ask(1, prompt(1, 10))
    loop.until_done(1)
    assert loop.text[1] == expected(prompt(1, 10), 5)
    assert loop.ended[1].finish == "length"
    assert loop.ended[1].completion_tokens == 5
    assert loop.runtime.used() == 0
    assert loop.runtime.samplers == 0


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("cached", [0, 400])
def test_many_requests_get_what_each_would_get_alone(cached: int, streams: bool) -> None:
    loop = Loop(Counting(900, sequences=5, context=180, streams=streams), cached=cached)
    shared = prompt(3, 3 * BLOCK)
    for request in range(40):
        tail = prompt(request, request % 11 + 1)
        loop.ask(request, (shared if request % 3 else []) + tail, max_tokens=request % 9 + 1)
    loop.until_done(40)
    for request in range(40):
        tokens = (shared if request % 3 else []) + prompt(request, request % 11 + 1)
        assert loop.text[request] == expected(tokens, request % 9 + 1), request
    assert loop.counters.active_cells == 0
    assert loop.runtime.used() == loop.counters.cached_cells <= max(cached, 0)
    assert (loop.counters.cached_cells > 0) == (cached > 0)


def test_decodes_go_on_while_a_long_prompt_is_computed() -> None:
    loop = Loop(Counting(5000), batch=64, chunk=32)
    loop.ask(1, prompt(1, 4), max_tokens=200)
    loop.turn()
    loop.ask(2, prompt(2, 640), max_tokens=2)
    loop.turn(21)
    assert len(loop.text[1]) == 22
    assert max(count for step in loop.runtime.steps[1:] for _, count in step) == 32


def test_a_short_prompt_overtakes_a_long_one() -> None:
    loop = Loop(Counting(5000), batch=64, chunk=64)
    loop.ask(1, prompt(1, 1000))
    loop.turn()
    loop.ask(2, prompt(2, 20))
    loop.turn()
    assert loop.order == [2]
    loop.until_done(2)
    assert loop.text[1] == expected(prompt(1, 1000), 5)


def test_the_oldest_prompt_is_never_starved_by_short_ones() -> None:
    loop = Loop(Counting(100_000, sequences=8), batch=64, chunk=64)
    loop.ask(1, prompt(1, 320), max_tokens=1)
    for turn in range(40):
        for number in range(4):
            loop.ask(100 + turn * 4 + number, prompt(turn, 30), max_tokens=1, client=f"c{number}")
        loop.turn()
        if 1 in loop.ended:
            break
    assert 1 in loop.ended
    assert turn <= 320 // 16


def test_clients_take_turns() -> None:
    loop = Loop(Counting(5000, sequences=2))
    for request in range(8):
        loop.ask(request, prompt(request, 5), client="greedy", max_tokens=20)
    loop.turn()
    loop.ask(100, prompt(9, 5), client="other", max_tokens=1)
    loop.until_done(3)
    assert 100 in loop.ended, "the other client's request must not wait for the eight"


def test_a_common_prefix_is_computed_once() -> None:
    runtime = Counting(5000, sequences=8)
    loop = Loop(runtime, batch=2048, chunk=2048, cached=1000)
    shared = prompt(5, 20 * BLOCK)
    for request in range(8):
        loop.ask(request, [*shared, 60 + request, 7], max_tokens=3)
    loop.until_done(8)
    computed = sum(count for step in runtime.steps for _, count in step)
    assert computed == len(shared) + 8 * 2 + 8 * 2
    assert sum(piece.cached_tokens for piece in loop.ended.values()) == 7 * len(shared)
    loop.ask(20, [*shared, 99], max_tokens=1)
    loop.until_done(9)
    assert loop.ended[20].cached_tokens == len(shared)


@pytest.mark.parametrize("extra", [0, 4])
def test_without_shared_cells_a_request_continues_in_the_sequence_of_its_prefix(extra: int) -> None:
    runtime = Counting(3000, sequences=3, context=1000, streams=True, extra=extra)
    loop = Loop(runtime, batch=2048, chunk=2048, cached=3000)
    turns = {client: prompt(at, 20 * BLOCK) for at, client in enumerate("abc", 3)}
    for at, (client, tokens) in enumerate(turns.items()):
        loop.ask(at, list(tokens), client=client)
        loop.until_done(at + 1)
    for at, (client, tokens) in enumerate(turns.items(), 10):
        loop.ask(at, [*tokens, 7, 8, 9], client=client)
        loop.until_done(at - 6)
        assert loop.ended[at].cached_tokens == len(tokens)
    assert runtime.copied == 0


def test_without_shared_cells_running_requests_are_adjacent_and_prefixes_make_room_for_them() -> None:
    runtime = Counting(6000, sequences=6, context=1000, streams=True, extra=20)
    loop = Loop(runtime, batch=2048, chunk=2048, cached=6000)
    for request in range(18):  # of three clients at a time, which end one by one
        loop.ask(request, prompt(request, 5 * BLOCK), client=str(request), max_tokens=4 + request % 3)
        if request >= 2:
            loop.until_done(request - 1)
    loop.until_done(18)
    for step in runtime.steps:
        ids = [sequence for sequence, _ in step]
        assert len(ids) < 3 or ids == list(range(ids[0], ids[0] + len(ids)))
    for request in range(18):
        loop.ask(100 + request, [*prompt(request, 5 * BLOCK), 7], client=str(request))
        loop.until_done(19 + request)
        assert loop.ended[100 + request].cached_tokens == 5 * BLOCK, "no prefix was lost"
    assert loop.counters.active_cells == 0
    assert runtime.used() == loop.counters.cached_cells


def test_without_shared_cells_copies_never_exceed_the_cells() -> None:
    """Every cell is used; prefixes that would have to be copied are dropped or computed."""
    runtime = Counting(30 * BLOCK, sequences=3, context=20 * BLOCK, streams=True, extra=6)
    loop = Loop(runtime, batch=2048, chunk=2048, cached=30 * BLOCK)
    copy = runtime.copy

    def counted(source: int, target: int, tokens: int) -> None:
        copy(source, target, tokens)
        assert runtime.used() <= runtime.ready.kv_tokens

    runtime.copy = counted
    shared = prompt(1, 8 * BLOCK)
    for request in range(30):
        loop.ask(request, [*shared[: (3 + request % 6) * BLOCK], *prompt(request, 9)], max_tokens=1 + request % 20)
    loop.until_done(30)
    for request in range(30):
        tokens = [*shared[: (3 + request % 6) * BLOCK], *prompt(request, 9)]
        assert loop.text[request] == expected(tokens, 1 + request % 20)
    assert loop.counters.active_cells == 0
    assert runtime.copied


def test_without_shared_cells_long_prefixes_are_copied_and_short_ones_computed() -> None:
    for blocks, copied in ((20, 3), (2, 0)):
        runtime = Counting(4000, sequences=4, context=1000, streams=True)
        loop = Loop(runtime, batch=2048, chunk=2048, cached=4000)
        shared = prompt(5, blocks * BLOCK)
        for request in range(4):
            loop.ask(request, [*shared, 60 + request, 7], max_tokens=3)
        loop.until_done(4)
        assert runtime.copied == copied
        assert loop.counters.active_cells == 0
        assert runtime.used() == loop.counters.cached_cells


def test_prefixes_do_not_cross_clients_or_seeds() -> None:
    loop = Loop(Counting(5000), cached=1000)
    tokens = prompt(5, 10 * BLOCK)
    loop.ask(1, list(tokens), client="a")
    loop.until_done(1)
    loop.ask(2, list(tokens), client="b")
    loop.ask(3, list(tokens), client="a", seed=1)
    loop.ask(4, list(tokens), client="a")
    loop.until_done(4)
    assert [loop.ended[request].cached_tokens for request in (1, 2, 3, 4)] == [0, 0, 0, 9 * BLOCK]


def test_a_lone_seeded_request_finds_an_empty_cache() -> None:
    loop = Loop(Counting(5000), cached=1000)
    loop.ask(1, prompt(1, 10 * BLOCK))
    loop.until_done(1)
    assert loop.runtime.used() == 10 * BLOCK
    loop.ask(2, prompt(2, BLOCK), seed=1)
    loop.turn()
    assert loop.runtime.used() == BLOCK


def test_cancelling_gives_up_the_cells_within_one_step() -> None:
    loop = Loop(Counting(5000), batch=256)
    loop.ask(1, prompt(1, 50), max_tokens=1000)
    loop.ask(2, prompt(2, 50), max_tokens=1000)
    loop.turn(3)
    steps = loop.counters.steps
    loop.inbox.put(Cancel(1))
    loop.turn()
    assert loop.counters.steps == steps + 1
    assert loop.counters.running == 1
    assert loop.counters.active_cells == loop.runtime.used() == 50 + 3
    loop.inbox.put(Cancel(2))
    loop.turn()
    assert loop.counters.active_cells == loop.runtime.used() == loop.runtime.samplers == 0


def test_cancelling_what_waits_or_is_unknown() -> None:
    loop = Loop(Counting(5000, sequences=1))
    loop.ask(1, prompt(1, 5), max_tokens=3)
    loop.ask(2, prompt(2, 5), max_tokens=3)
    loop.turn()
    loop.inbox.put(Cancel(2))
    loop.inbox.put(Cancel(77))
    loop.until_done(1)
    assert loop.runtime.samplers == 0
    assert 2 not in loop.text


def test_kept_prefixes_go_before_any_request_waits() -> None:
    loop = Loop(Counting(20 * BLOCK, context=400), cached=15 * BLOCK)
    loop.ask(1, prompt(1, 12 * BLOCK), max_tokens=1)
    loop.until_done(1)
    assert loop.counters.cached_cells == 12 * BLOCK
    loop.ask(2, prompt(2, 18 * BLOCK), max_tokens=2)
    loop.until_done(2)
    assert loop.text[2] == expected(prompt(2, 18 * BLOCK), 2)


def test_requests_that_outgrow_the_cache_start_over_and_lose_nothing() -> None:
    loop = Loop(Counting(200, sequences=4, context=190))
    for request in range(4):
        loop.ask(request, prompt(request, 20), max_tokens=100)
    loop.until_done(4)
    assert loop.counters.preempted > 0
    for request in range(4):
        assert loop.text[request] == expected(prompt(request, 20), 100)


def test_a_full_context_ends_by_length() -> None:
    loop = Loop(Counting(500, context=40))
    loop.ask(1, prompt(1, 30), max_tokens=None)
    loop.until_done(1)
    assert loop.ended[1].finish == "length"
    assert loop.ended[1].completion_tokens == 10


def test_a_runtime_with_fewer_cells_than_it_said() -> None:
    runtime = Counting(300, sequences=3, context=250)
    loop = Loop(runtime)
    runtime.ready = dataclasses.replace(runtime.ready, kv_tokens=100)
    for request in range(3):
        loop.ask(request, prompt(request, 40), max_tokens=30)
    loop.until_done(3)
    assert not loop.refused
    loop.ask(9, prompt(9, 120), max_tokens=5)
    loop.until_done(4)
    assert loop.refused[9].code == "OUT_OF_MEMORY"
    loop.ask(10, prompt(1, 10))
    loop.until_done(5)
    assert loop.text[10] == expected(prompt(1, 10), 5)


def test_a_grammar_ends_the_answer_without_another_step() -> None:
    loop = Loop(Counting(1000))
    loop.ask(1, prompt(1, 10), grammar='{"a":1}', max_tokens=50)
    loop.ask(2, prompt(2, 10))
    loop.until_done(2)
    assert (loop.text[1], loop.ended[1].finish, loop.ended[1].completion_tokens) == ('{"a":1}', "stop", 7)
    assert loop.text[2] == expected(prompt(2, 10), 5), "a neighbour is not changed"
    assert loop.runtime.samplers == loop.counters.active_cells == 0


def test_a_grammar_that_is_whole_at_the_limit_ends_by_stop_and_a_cut_one_by_length() -> None:
    loop = Loop(Counting(1000))
    for request, limit in enumerate((6, 7)):
        loop.ask(request, prompt(1, 10), grammar='{"a":1}', max_tokens=limit)
    loop.until_done(2)
    assert [loop.ended[request].finish for request in (0, 1)] == ["length", "stop"]
    assert [loop.text[request] for request in (0, 1)] == ['{"a":1', '{"a":1}']


def test_stop_strings_and_ignoring_the_end_have_no_effect_under_a_grammar() -> None:
    loop = Loop(Counting(1000))
    loop.ask(1, prompt(1, 10), grammar='["a","b"]', stop=('","', "]"), max_tokens=50)
    loop.ask(2, prompt(1, 10), grammar=f"one{chr(END)}two", ignore_eos=True, max_tokens=50)
    loop.until_done(2)
    assert loop.text[1] == '["a","b"]'
    assert (loop.text[2], loop.ended[2].finish) == ("one", "stop")


def test_a_grammar_that_fails_ends_its_own_request_only() -> None:
    loop = Loop(Counting(1000), cached=400)
    loop.ask(1, prompt(1, 10), grammar="abc!", max_tokens=50)
    loop.ask(2, prompt(2, 10), max_tokens=20)
    loop.until_done(2)
    assert (loop.text[1], loop.refused[1].code) == ("abc", "INTERNAL")
    assert loop.text[2] == expected(prompt(2, 10), 20)
    assert loop.runtime.samplers == loop.counters.active_cells == 0


def test_requests_that_start_over_go_on_in_their_grammar() -> None:
    loop = Loop(Counting(200, sequences=4, context=190))
    answers = {request: "".join(chr(97 + (request + at) % 26) for at in range(100)) for request in range(4)}
    for request, answer in answers.items():
        loop.ask(request, prompt(request, 20), grammar=answer, max_tokens=120)
    loop.until_done(4)
    assert loop.counters.preempted > 0
    assert loop.text == answers
    assert {piece.finish for piece in loop.ended.values()} == {"stop"}


def test_cancelling_in_the_middle_of_a_grammar() -> None:
    loop = Loop(Counting(1000))
    loop.ask(1, prompt(1, 10), grammar="abcdef" * 20, max_tokens=200)
    loop.turn(5)
    loop.inbox.put(Cancel(1))
    loop.turn()
    assert loop.text[1] == "abcde"
    assert loop.runtime.samplers == loop.counters.active_cells == loop.counters.running == 0


def reported(loop: Loop, request: int) -> list[tuple[str, bytes]]:
    """Returns text and token bytes of each piece of a request."""
    return [(piece.text, b"".join(logprob.piece for logprob in piece.logprobs or [])) for piece in loop.pieces[request]]


def test_logprobs_come_with_the_text_of_their_tokens() -> None:
    loop = Loop(Counting(1000))
    loop.ask(1, prompt(1, 10), logprobs=0, max_tokens=3)
    loop.ask(2, prompt(1, 10), max_tokens=3)
    loop.until_done(2)
    assert [piece.text.encode() for piece in loop.pieces[1]] == [token for _, token in reported(loop, 1)]
    assert [logprob.logprob for piece in loop.pieces[1] for logprob in piece.logprobs] == [-10.0, -11.0, -12.0]
    assert {piece.logprobs for piece in loop.pieces[2]} == {None}


def scores(loop: Loop, request: int) -> list[tuple[int, float]]:
    """Returns the tokens of a scored prompt with their logprobs."""
    found = [each for piece in loop.pieces[request] for each in piece.prompt_logprobs or ()]
    return [(each.piece[0], each.logprob) for each in found]


@pytest.mark.parametrize(("streams", "states"), [(False, False), (True, False), (False, True)])
def test_every_token_of_a_scored_prompt_is_reported_once(streams: bool, states: bool) -> None:
    """A scored request reads no cached prefix, and reports each token once if it starts over."""
    loop = Loop(Counting(600, sequences=4, context=500, streams=streams, states=states), cached=300)
    shared = prompt(1, 250)
    loop.ask(0, shared, max_tokens=1)
    loop.until_done(1)
    for request in range(1, 5):
        loop.ask(request, shared + prompt(request, request), scored=True, logprobs=0, max_tokens=90)
    loop.ask(5, [*shared, 65], max_tokens=20)
    loop.ask(6, [66], scored=True, logprobs=0, max_tokens=1)
    loop.until_done(7)
    for request in range(1, 5):
        tokens = shared + prompt(request, request)
        assert scores(loop, request) == [(token, -float(at)) for at, token in enumerate(tokens)]
        assert loop.text[request] == expected(tokens, 90)
        assert len([each for piece in loop.pieces[request] for each in piece.logprobs or ()]) == 90
    assert loop.counters.preempted > 0
    assert max(loop.runtime.scored) == MOST_SCORED, "a step has few rows of logits"
    assert (scores(loop, 5), scores(loop, 6)) == ([], [(66, 0.0)])


def test_scored_prompts_share_a_step_and_leave_the_rest_of_it_to_others() -> None:
    loop = Loop(Counting(2000), batch=200)
    for request in range(3):
        loop.ask(request, prompt(request, 50), scored=True, logprobs=0, max_tokens=1)
    loop.ask(3, prompt(3, 100), max_tokens=1)
    loop.turn()
    assert sum(loop.runtime.scored) == MOST_SCORED
    assert sum(tokens for _, tokens in loop.runtime.steps[0]) == MOST_SCORED + 100
    loop.until_done(4)
    assert all(len(scores(loop, request)) == 50 for request in range(3))


def test_control_tokens_show_only_where_they_are_asked_for() -> None:
    loop = Loop(Counting(1000))
    for request, special in enumerate((False, True)):
        script = f"a\x02b{chr(END)}"
        loop.ask(request, prompt(1, 10), grammar=script, special=special, logprobs=0, max_tokens=50)
    loop.until_done(2)
    assert reported(loop, 0) == [("a", b"a"), ("b", b"b"), ("", b"")]
    assert reported(loop, 1) == [("a", b"a"), ("\x02", b"\x02"), ("b", b"b"), ("", b"")]
    assert [piece.finish for piece in loop.pieces[1]] == [None, None, None, "stop"]


def test_logprobs_of_what_a_stop_string_holds_back_or_cuts_off() -> None:
    tokens = expected(prompt(1, 10), 6)
    loop = Loop(Counting(1000))
    loop.ask(1, prompt(1, 10), logprobs=0, stop=(tokens[1:3] + "?",), max_tokens=6)
    loop.ask(2, prompt(1, 10), logprobs=0, stop=(tokens[2:5],), max_tokens=6)
    loop.ask(3, prompt(1, 10), logprobs=0, stop=(tokens[4:] + "?",), max_tokens=6)
    loop.until_done(3)
    data = tokens.encode()
    assert reported(loop, 1)[:2] == [(tokens[0], data[:1]), (tokens[1:4], data[1:4])]
    assert b"".join(token for _, token in reported(loop, 2)) == data[:2]
    assert reported(loop, 3)[-1] == (tokens[4:], data[4:]), "held to the end"


# --- deadlines


def test_request_that_arrives_expired_is_never_started() -> None:
    loop = Loop(Counting(1000))
    loop.ask(1, prompt(1, 10), deadline=time.monotonic() - 0.001)
    loop.until_done(1)
    assert loop.refused[1].code == "TIMEOUT"
    assert loop.runtime.steps == []
    assert loop.runtime.samplers == 0


def test_request_waiting_too_long_is_never_started() -> None:
    loop = Loop(Counting(1_000_000, sequences=1))
    loop.ask(1, prompt(1, 10), max_tokens=900_000)
    deadline = time.monotonic() + 0.05
    loop.ask(2, prompt(2, 10), deadline=deadline)
    loop.ask(3, prompt(3, 10), max_tokens=1)
    while 2 not in loop.refused:
        loop.turn()
        assert 1 not in loop.ended
    assert time.monotonic() >= deadline
    loop.cancel(1)
    loop.until_done(2)
    assert loop.text[3] == expected(prompt(3, 10), 1)
    assert {sequence for step in loop.runtime.steps for sequence, _ in step} == {0}
    assert loop.runtime.samplers == 0


def test_expired_sequence_ends_before_the_next_step_and_keeps_no_cells() -> None:
    loop = Loop(Counting(1_000_000, context=500_000))
    deadline = time.monotonic() + 0.05
    loop.ask(1, prompt(1, 10), max_tokens=400_000, deadline=deadline)
    loop.ask(2, prompt(2, 10), max_tokens=400_000, deadline=deadline + 3600)
    while 1 not in loop.refused:
        steps = len(loop.runtime.steps)
        late = time.monotonic() >= deadline
        loop.turn()
    assert late or len(loop.runtime.steps) == steps + 1
    assert len(loop.runtime.steps[-1]) == 1, "the other goes on"
    assert loop.counters.running == 1
    loop.cancel(2)
    loop.turn()
    assert loop.runtime.used() == loop.counters.active_cells == loop.runtime.samplers == 0


# --- slow readers


def test_a_held_request_computes_nothing_and_goes_on_where_it_was() -> None:
    loop = Loop(Counting(1000))
    loop.ask(1, prompt(1, 10), max_tokens=9)
    loop.ask(2, prompt(2, 10), max_tokens=40)
    loop.turn(4)
    loop.hold(1)
    loop.turn(10)
    assert len(loop.text[1]) == 4
    assert len(loop.text[2]) == 14
    loop.hold(1, held=False)
    loop.hold(99)
    loop.until_done(2)
    assert loop.text[1] == expected(prompt(1, 10), 9)
    assert loop.text[2] == expected(prompt(2, 10), 40)
    assert loop.counters.preempted == 0


def test_held_requests_alone_cause_no_step() -> None:
    loop = Loop(Counting(1000))
    loop.ask(1, prompt(1, 10), max_tokens=9)
    loop.turn(4)
    loop.hold(1)
    loop.turn()
    loop.cancel(1)  # otherwise the turn would block forever
    loop.turn()
    assert len(loop.runtime.steps) == 4
    assert loop.runtime.used() == loop.runtime.samplers == 0


def test_a_held_request_keeps_neither_a_place_nor_cells_that_another_needs() -> None:
    for cells, sequences in ((1000, 1), (64, 4)):
        loop = Loop(Counting(cells, sequences=sequences))
        loop.ask(1, prompt(1, 20), max_tokens=12)
        loop.turn(4)
        loop.hold(1)
        loop.ask(2, prompt(2, 30), max_tokens=2)
        loop.until_done(1)
        assert loop.text[2] == expected(prompt(2, 30), 2)
        assert loop.counters.preempted == 1
        loop.hold(1, held=False)
        loop.until_done(2)
        assert loop.text[1] == expected(prompt(1, 20), 12)


# --- heavy clients


class SteppedClock:
    """A clock that only the runtime's steps move: a second for each token."""

    def __init__(self, runtime: Counting) -> None:
        self.now = 0.0
        step = runtime.step

        def timed(spans: Sequence[TokenSpan]) -> list[Any]:
            self.now += sum(len(span.tokens) for span in spans)
            return step(spans)

        runtime.step = timed  # type: ignore[method-assign]

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def timed_loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """A loop on such a clock."""
    runtime = Counting(5000, sequences=9)
    monkeypatch.setattr(loop_module, "time", SteppedClock(runtime))
    return Loop(runtime)


def test_a_heavy_client_leaves_another_half_of_the_time(timed_loop: Loop) -> None:
    loop, runtime = timed_loop, timed_loop.runtime
    for request in range(8):
        loop.ask(request, prompt(request, 4), client="heavy", max_tokens=20)
    loop.turn()
    loop.ask(100, prompt(50, 4), client="light", max_tokens=60)
    loop.until_done(1)
    assert list(loop.ended) == [100]
    seconds = [(len(step) > 1, sum(tokens for _, tokens in step)) for step in runtime.steps]
    alone, together = (sum(took for shared, took in seconds if shared is both) for both in (False, True))
    assert together - 9 <= alone <= together
    assert runtime.steps[1] == [(8, 4)], "it waits for no second step of the heavy client"
    assert len(loop.text[0]) == sum(shared for shared, _ in seconds), "a heavy client is never shut out"
    loop.until_done(9)
    assert loop.text[100] == expected(prompt(50, 4), 60)
    assert all(loop.text[request] == expected(prompt(request, 4), 20) for request in range(8))
    assert len(runtime.steps[-1]) == 8, "a lone client gets the whole machine"


def test_clients_with_about_as_many_requests_share_every_step(timed_loop: Loop) -> None:
    loop = timed_loop
    for request in range(3):
        loop.ask(request, prompt(request, 4), client="three", max_tokens=20)
    loop.ask(100, prompt(50, 4), client="one", max_tokens=20)
    loop.until_done(4)
    assert {len(step) for step in loop.runtime.steps} == {4}


def test_a_heavy_client_gives_a_place_to_another() -> None:
    loop = Loop(Counting(5000, sequences=8), cached=1000)
    for request in range(12):
        loop.ask(request, prompt(request, 40), client="heavy", max_tokens=30)
    loop.turn(20)
    loop.ask(100, prompt(50, 10), client="light", max_tokens=3)
    loop.ask(101, prompt(51, 10), client="light", max_tokens=3)
    loop.until_done(2)
    assert set(loop.ended) == {100, 101}
    assert loop.counters.preempted == 1, "eight times as many, but not four times as many as two"
    loop.until_done(14)
    assert all(loop.text[request] == expected(prompt(request, 40), 30) for request in range(12))
    assert loop.pieces[7][-1].cached_tokens >= 40 // 16 * 16, "it goes on where it was"
    assert loop.runtime.samplers == 0


def test_requests_whose_tokens_are_slow_to_find_take_turns() -> None:
    loop = Loop(Counting(5000, sequences=8))
    for request in range(6):
        loop.ask(request, prompt(request, 4), client=f"slow{request % 2}", max_tokens=20, grammar="~" * 20)
    loop.ask(100, prompt(50, 4), client="other", max_tokens=30)
    loop.until_done(7)
    assert [len(step) for step in loop.runtime.steps[:30]] == [7] + [3] * 29, "two slow ones and the other"
    shares = Counter(sequence for step in loop.runtime.steps[1:30] for sequence, _ in step)
    assert sorted(shares.values()) == [9, 9, 10, 10, 10, 10, 29]
    assert all(loop.text[request] == "~" * 20 for request in range(6))
    assert loop.text[100] == expected(prompt(50, 4), 30)


def test_cells_that_run_out_are_taken_from_the_client_with_most_requests() -> None:
    loop = Loop(Counting(128, sequences=8))
    for request in range(5):
        loop.ask(request, prompt(request, 16), client="many", max_tokens=40)
    loop.turn(2)
    loop.ask(100, prompt(50, 8), client="one", max_tokens=40)
    loop.until_done(6)
    assert loop.counters.preempted
    assert loop.phases[100].count("queue") == 0
    assert loop.text[100] == expected(prompt(50, 8), 40)


# --- the queue


def test_clients_take_turns_though_only_one_request_can_run() -> None:
    loop = Loop(Counting(5000, sequences=1))
    for request in range(6):
        loop.ask(request, prompt(request, 5), client="greedy", max_tokens=3)
    loop.ask(100, prompt(9, 5), client="other", max_tokens=3)
    loop.ask(101, prompt(8, 5), client="other", max_tokens=3)
    loop.until_done(8)
    ends = sorted(loop.ended, key=loop.order.index)
    assert ends == [0, 100, 1, 101, 2, 3, 4, 5]


def test_prompts_that_wait_are_bounded_by_their_tokens() -> None:
    loop = Loop(Counting(5000, sequences=1), queue_tokens=100)
    loop.ask(1, prompt(1, 10), max_tokens=400)
    loop.turn()
    loop.ask(2, prompt(2, 500), max_tokens=1)  # an empty queue admits a request of any size
    loop.ask(3, prompt(3, 10), max_tokens=1)
    loop.turn()
    assert set(loop.refused) == {3}
    assert loop.refused[3].code == "OVERLOADED"
    assert "ALLM_QUEUE_TOKENS" in loop.refused[3].message
    loop.cancel(2)
    for request in range(4, 9):
        loop.ask(request, prompt(request, 25), max_tokens=1)
    loop.turn()
    assert set(loop.refused) == {3, 8}


# --- step pace


def test_a_slow_machine_gets_smaller_steps_and_computes_the_same() -> None:
    pace = Pace(16, 64)
    loop = Loop(Counting(5000), batch=64, chunk=64, pace=pace)
    loop.runtime.step = slowed(loop.runtime.step, pace)
    loop.ask(1, prompt(1, 200), max_tokens=3)
    loop.until_done(1)
    assert loop.text[1] == expected(prompt(1, 200), 3)
    sizes = [sum(count for _, count in step) for step in loop.runtime.steps]
    assert sizes[:3] == [16, 16, 16]


def slowed(step: Callable[..., Any], pace: Pace) -> Callable[..., Any]:
    """Returns `step` and makes the pace record one second per token."""
    pace.took = lambda amount, seconds: Pace.took(pace, amount, float(amount))  # type: ignore[method-assign]
    return step


# --- phases of a request


def test_the_phases_of_a_request_are_reported_in_order() -> None:
    loop = Loop(Counting(400, sequences=1), batch=16)
    before = time.monotonic()
    loop.ask(1, prompt(1, 40), max_tokens=3)
    loop.ask(2, prompt(2, 10), max_tokens=1)
    loop.turn()
    assert loop.phases == {1: ["prefill"]}, "the other one waits, and is where it was"
    loop.turn(2)
    assert loop.phases == {1: ["prefill", "decode"]}, "40 tokens take three steps"
    loop.until_done(2)
    assert loop.phases[2] == ["prefill", "decode"], "also where the first token is the last"
    assert before <= min(loop.at)
    assert loop.at == sorted(loop.at)


def test_restarted_request_waits_again() -> None:
    loop = Loop(Counting(200, sequences=4, context=190))
    for request in range(4):
        loop.ask(request, prompt(request, 20), max_tokens=100)
    loop.until_done(4)
    once = ["prefill", "decode"]
    assert loop.phases[0] == once
    again = sum(phases.count("queue") for phases in loop.phases.values())
    assert again == loop.counters.preempted
    assert all(phases == [*once, *["queue", *once] * (len(phases) // 3)] for phases in loop.phases.values())
