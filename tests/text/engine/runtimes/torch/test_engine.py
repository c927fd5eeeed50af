"""The torch runtime under the batch loop, on real weights; tests/text/families compares it with transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from services.worker.messages import Cancel
from tests.text.engine.session import Session

if TYPE_CHECKING:
    from services.text.engine.runtimes.torch.engine import SafetensorsEngine


def ask(engine: SafetensorsEngine, question: str, **params) -> str:
    return Session(engine).answer(question, **params)


CAPITAL = "What is the capital of France?"
STORY = "Tell me a story about a fox."


def test_the_answer_is_the_good_one(demo: SafetensorsEngine) -> None:
    session = Session(demo)
    assert session.answer(CAPITAL) == "The capital of France is Paris."
    assert session.ended[1].finish == "stop"
    assert session.counters.active_cells == 0


def test_it_describes_itself(demo: SafetensorsEngine) -> None:
    ready = demo.ready
    assert (ready.context_tokens, ready.kv_tokens, ready.vocabulary) == (1024, 2048, 49152)
    assert (ready.bos, ready.eos, ready.add_bos) == ("<|im_start|>", "<|im_end|>", False)
    assert "<|im_start|>assistant" in ready.chat_template
    assert demo.is_end(2)
    assert not demo.is_end(1)
    assert demo.piece(1, special=False) == demo.piece(2, special=True) == b""
    assert demo.piece(1, special=True) == b"<|im_start|>"


def test_requests_side_by_side_answer_like_alone(demo: SafetensorsEngine) -> None:
    questions = [CAPITAL, "What is the capital of Italy?", "What colour is the sky?"]
    alone = [ask(demo, question) for question in questions]
    session = Session(demo)
    for request, question in enumerate(questions):
        session.ask(request, question)
    session.finish(len(questions))
    for request, text in enumerate(alone):
        # Batches of different shapes round differently: only the first words must agree.
        assert session.text[request].split()[:4] == text.split()[:4]
    assert len(set(session.order[:6])) == 3, "tokens must interleave"


def test_a_seed_repeats_and_another_does_not(demo: SafetensorsEngine) -> None:
    first, second, other = (ask(demo, STORY, temperature=1.0, seed=seed, max_tokens=10) for seed in (11, 11, 12))
    assert first == second
    assert first != other


def test_top_k_of_one_is_greedy(demo: SafetensorsEngine) -> None:
    assert ask(demo, CAPITAL, temperature=1.5, top_k=1) == ask(demo, CAPITAL)


def test_stop_strings_never_leak(demo: SafetensorsEngine) -> None:
    session = Session(demo)
    assert session.answer(CAPITAL, stop=("France is",)) == "The capital of "
    assert session.ended[1].finish == "stop"


def test_ignore_eos_goes_on_to_the_limit(demo: SafetensorsEngine) -> None:
    session = Session(demo)
    session.answer(CAPITAL, ignore_eos=True, max_tokens=20)
    assert (session.ended[1].completion_tokens, session.ended[1].finish) == (20, "length")


def test_a_logit_bias_outside_the_vocabulary_is_refused(demo: SafetensorsEngine) -> None:
    session = Session(demo)
    session.ask(1, CAPITAL, logit_bias=((10**6, 1.0),))
    session.finish(1)
    assert session.refused[1].code == "INVALID_REQUEST"
    assert "49151" in session.refused[1].message


def test_prefixes_are_reused_and_can_be_switched_off(demo: SafetensorsEngine) -> None:
    for cached, reused in ((1024, True), (0, False)):
        session = Session(demo, cached)
        question = "Here is a long text that two requests have in common. " * 8
        for request, rest in enumerate(("What is it?", "How long is it?"), 1):
            session.ask(request, question + rest, max_tokens=4)
            session.finish(request)
        assert (session.ended[2].cached_tokens > 80) == reused
        assert (session.counters.cached_cells > 0) == reused


def test_pages_come_back_on_cancel(demo: SafetensorsEngine) -> None:
    session = Session(demo, cached=0)
    free = demo._tables.free
    session.ask(1, CAPITAL, max_tokens=500, ignore_eos=True)
    session.loop.turn()
    assert demo._tables.free < free
    session.inbox.put(Cancel(1))
    session.loop.turn()
    assert demo._tables.free == free


def test_a_schema_binds_only_its_own_answer(demo: SafetensorsEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "number": {"enum": [1, 2, 3]}},
        "required": ["colour", "number"],
        "additionalProperties": False,
    }
    grammar = json.dumps({"grammars": [{"json_schema": schema}]})
    session = Session(demo)
    session.ask(1, "Name a colour and a number as JSON.", grammar=grammar, max_tokens=60, temperature=1.0, seed=1)
    session.ask(2, CAPITAL)
    session.ask(3, "Name a colour and a number as JSON.", grammar=grammar, max_tokens=60, logprobs=2)
    session.finish(3)
    assert session.text[2] == "The capital of France is Paris."
    for request in (1, 3):
        answer = json.loads(session.text[request])
        assert answer["colour"] in ("red", "green")
        assert answer["number"] in (1, 2, 3)
        assert session.ended[request].finish == "stop"


def test_logprobs_are_the_model_s_own(demo: SafetensorsEngine) -> None:
    session = Session(demo)
    session.answer(CAPITAL, logprobs=3, max_tokens=6)
    reported = [each for piece in session.pieces[1] for each in piece.logprobs or ()]
    assert b"".join(each.piece for each in reported).decode() == session.text[1]
    for each in reported:
        assert each.top[0] == (each.piece, pytest.approx(each.logprob)), "greedy: the likeliest"
        assert len(each.top) == 3
        assert 0 >= each.top[0][1] >= each.top[1][1] >= each.top[2][1]
