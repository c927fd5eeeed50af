"""Pictures in the batch loop, over a runtime without weights: preparation, encoding, reuse, fairness, memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.text.engine.__main__ import _prepare
from services.text.engine.kv_cells import BLOCK
from services.text.engine.messages import Accepted, Pixels, Submit
from services.text.engine.sampling import SamplingParams
from services.text.engine.speculation import StepCosts
from services.worker.messages import RequestRefused
from tests.text.engine.counting import Counting, Loop, drawing, expected
from tests.text.engine.prepared import prepared


def sent(runtime: Counting, prompt: str, *pictures: Pixels) -> tuple[Any, Any]:
    """Prepares a request. Returns what the loop gets, and what the service does."""
    messages: list[Any] = []
    submit = Submit(1, "a", prompt, SamplingParams(max_tokens=4), pictures=pictures, mark="*")
    return prepared(_prepare(runtime, submit, messages.append)), messages[-1]


def test_pictures_take_their_places_among_the_tokens() -> None:
    first, second = drawing(1, 3, 2), drawing(2, 5)
    shown, answer = sent(Counting(1000), "ab*c*d", first, second)
    assert answer == Accepted(1, 2 + 7 + 1 + 5 + 1)
    assert [(part.start, part.count) for part in shown.pictures] == [(2, 3), (6, 3), (10, 5)]
    words = [token for token in shown.tokens if token >= 0]
    assert bytes(words) == b"ab\ncd"
    for part in shown.pictures:
        assert shown.tokens[part.start : part.end] == [part.source] * part.count
    again, _ = sent(Counting(1000), "*ab", drawing(2, 5))
    assert again.tokens[:5] == shown.tokens[10:15], "equal pictures have equal tokens"


def test_prompts_that_cannot_be_answered_are_refused_by_name() -> None:
    runtime = Counting(1000, context=40)
    for prompt, pictures, code, words, param in (
        ("a*", [drawing(1, 3)], "INVALID_REQUEST", "ends with a picture", "messages"),
        ("a*b", [drawing(1, 3)] * 2, "INVALID_REQUEST", "1 of 2 pictures", "messages"),
        ("a*b*c*d", [drawing(n, 20) for n in range(3)], "CONTEXT_LENGTH_EXCEEDED", "43 tokens", "picture 1"),
    ):
        shown, refusal = sent(runtime, prompt, *pictures)
        assert shown is None
        assert (refusal.code, refusal.param) == (code, param)
        assert words in refusal.message


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("layout", [{}, {"streams": True}, {"states": True}])
def test_many_requests_get_what_each_would_get_alone(layout: dict[str, bool], whole: bool) -> None:
    """Pictures of one and several parts, before, between and after texts, with few cells and reuse between requests."""
    runtime = Counting(900, sequences=5, context=220, whole=whole, **layout)
    loop = Loop(runtime, batch=64, chunk=24, cached=400)
    asked = {}
    for request in range(40):
        pictures = [drawing(request % 4, 30), drawing(request % 3, 17, 2), drawing(request % 5, 1)]
        prompt = ("Look: *", "*and *", "* * *")[request % 3] + "what is this?" * (request % 4 + 1)
        count = request % 9 + 1
        tokens = loop.show(request, prompt, pictures[: prompt.count("*")], client="ab"[request % 2], max_tokens=count)
        asked[request] = tokens, count
    loop.until_done(40)
    for request, (tokens, count) in asked.items():
        assert loop.text[request] == expected(tokens, count), request
    assert loop.counters.active_cells == 0
    assert runtime.used() == loop.counters.cached_cells
    assert runtime.samplers == 0


def test_running_answers_wait_for_one_part_at_most_between_two_tokens() -> None:
    runtime = Counting(5000)
    loop = Loop(runtime)
    loop.ask(1, [65, 66], max_tokens=100)
    loop.turn()
    loop.show(2, "*?", [drawing(1, 40, 8)], client="b", max_tokens=1)
    seen = 0
    while 2 not in loop.ended:
        before = len(loop.text[1])
        loop.turn()
        assert len(loop.text[1]) == before + 1, "every turn has a token"
        assert len(runtime.encoded) <= seen + 1
        seen = len(runtime.encoded)
    assert seen == 8


def test_clients_take_turns_at_encoding() -> None:
    runtime = Counting(5000, sequences=8)
    loop = Loop(runtime)
    for request in range(4):
        loop.show(request, "*?", [drawing(request, 40, 3)], client="greedy", max_tokens=1)
    loop.turn()
    loop.show(10, "*?", [drawing(10, 40)], client="other", max_tokens=1)
    loop.turn()
    assert runtime.encoded[1] == loop.runtime.see(drawing(10, 40))[1][0].source


def test_a_picture_from_the_prefix_cache_is_not_encoded_again() -> None:
    runtime = Counting(5000)
    loop = Loop(runtime, cached=1000)
    picture, question = drawing(1, 40, 2), "Look at this: * and tell me what you see in it,"
    loop.show(1, question, [picture])
    loop.until_done(1)
    assert len(runtime.encoded) == 2
    loop.show(2, question + " please", [picture])
    loop.until_done(2)
    assert loop.ended[2].cached_tokens >= 5 * BLOCK
    assert len(runtime.encoded) == 2
    loop.show(3, question, [drawing(2, 40, 2)])
    loop.show(4, question, [picture], client="b")
    loop.until_done(4)
    assert loop.ended[3].cached_tokens == loop.ended[4].cached_tokens == 0
    assert len(runtime.encoded) == 6, "another picture, and another client's"


def test_a_prompt_waits_for_the_picture_that_another_one_computes() -> None:
    runtime = Counting(5000)
    loop = Loop(runtime, batch=64, cached=1000)
    for request in range(3):
        loop.show(request, f"* and then text number {request}", [drawing(1, 50, 4)], max_tokens=2)
    loop.until_done(3)
    assert len(runtime.encoded) == 4


def test_whole_parts_are_neither_divided_nor_reused_in_part() -> None:
    """`Counting` asserts that each is computed in one step, however small the budget is."""
    runtime = Counting(5000, whole=True)
    loop = Loop(runtime, batch=64, chunk=16, cached=1000)
    loop.ask(1, [65], max_tokens=200, client="b")
    loop.turn()
    loop.show(2, "ab*c", [drawing(1, 40)], max_tokens=1)
    loop.until_done(1)
    loop.show(3, "ab*c", [drawing(1, 40)], max_tokens=1)
    loop.show(4, "ab*cd and a text of more than a block", [drawing(1, 40)], max_tokens=1)
    loop.until_done(3)
    assert loop.ended[3].cached_tokens == 0, "a common prefix that ends inside the picture"
    loop.show(5, "ab*cd and a text of more than a block", [drawing(1, 40)], max_tokens=1)
    loop.until_done(4)
    assert loop.ended[5].cached_tokens >= 42


def test_a_preempted_request_encodes_its_pictures_again_and_keeps_no_embeddings() -> None:
    runtime = Counting(120, sequences=2, context=120)
    loop = Loop(runtime, cached=0)
    first = loop.show(1, "*ab", [drawing(1, 40)], max_tokens=50)
    second = loop.show(2, "*cd", [drawing(2, 40)], client="b", max_tokens=50)
    loop.until_done(2)
    assert loop.counters.preempted > 0
    assert len(runtime.encoded) > 2
    assert (loop.text[1], loop.text[2]) == (expected(first, 50), expected(second, 50))


def test_embeddings_are_freed_part_by_part() -> None:
    loop = Loop(Counting(5000), batch=20)
    loop.show(1, "*ab", [drawing(1, 40, 3)], max_tokens=3)
    held = []
    while 1 not in loop.ended:
        loop.turn()
        held += [[part.embeddings is not None for part in each.pictures] for each in loop.loop._running]
    assert max(sum(parts) for parts in held) == 1
    assert not any(held[-1])


def during_encoding(act: Callable[[Loop], None]) -> Loop:
    loop = Loop(Counting(1000))
    loop.show(1, "*ab", [drawing(1, 40, 3)], max_tokens=3)
    loop.ask(2, [65], max_tokens=20)
    loop.turn()
    act(loop)
    loop.turn(6)
    return loop


def test_cancelled_and_held_requests_encode_nothing_more() -> None:
    loop = during_encoding(lambda loop: loop.cancel(1))
    assert len(loop.runtime.encoded) == 1
    assert (len(loop.loop._running), loop.runtime.samplers) == (1, 1)
    loop = during_encoding(lambda loop: loop.hold(1))
    assert len(loop.runtime.encoded) == 1
    loop.hold(1, False)
    loop.until_done(2)
    assert len(loop.runtime.encoded) == 3


def test_a_picture_that_cannot_be_encoded_ends_only_its_own_request() -> None:
    loop = Loop(Counting(1000))
    loop.ask(1, [65, 66], max_tokens=9)
    loop.show(2, "*ab", [drawing(1, 13)])
    loop.until_done(2)
    assert loop.refused[2] == RequestRefused(request=2, code="OUT_OF_MEMORY", message="no memory for this picture")
    assert loop.text[1] == expected([65, 66], 9)
    assert loop.runtime.used() == loop.runtime.samplers == 0


def test_guesses_are_never_tokens_of_pictures() -> None:
    runtime = Counting(2000)
    loop = Loop(runtime, cached=500, costs=StepCosts([1.0, 1.01]))
    answers = {}
    for request in range(6):
        tokens = loop.show(request, f"a*{'abab' * 9}*b", [drawing(1, 9), drawing(2, 9)], max_tokens=40)
        answers[request] = expected(tokens, 40)
        loop.until_done(request + 1)
    assert loop.text == answers
    assert loop.counters.drafted > 0
