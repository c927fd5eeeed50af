"""Comparison of two answers: equal except for rounding."""

from __future__ import annotations

import math

import pytest
from allm.text.v1 import chat_pb2

from services.cli.verify.sameness import difference, first_difference
from services.cli.verify.subject import TIE, Scored, SubjectAnswer

STOP, LENGTH = chat_pb2.FINISH_REASON_STOP, chat_pb2.FINISH_REASON_LENGTH


def token(name: str, *, gap: float = 5.0, logprob: float = -0.1) -> Scored:
    """Returns a most likely token and an alternative whose log probability is lower by `gap`."""
    return Scored(name.encode(), logprob, ((name.encode(), logprob), (b"~", logprob - gap)))


def answer(*tokens: Scored, finish: chat_pb2.FinishReason.ValueType = LENGTH) -> SubjectAnswer:
    return SubjectAnswer(text=b"".join(each.token for each in tokens).decode(), tokens=list(tokens), finish=finish)


def test_equal_answers() -> None:
    assert difference(answer(token("a"), token("b")), answer(token("a"), token("b"))) == ""


def test_answers_that_part_clearly() -> None:
    found = difference(answer(token("a"), token("b")), answer(token("a"), token("c")))
    assert found.startswith("they differ at token 2, 'b' and 'c'")


@pytest.mark.parametrize("sides", [(TIE / 2, 5.0), (5.0, TIE / 2)])
def test_answers_that_part_at_a_tie_may(sides: tuple[float, float]) -> None:
    one, other = (answer(token("a"), token(name, gap=gap), token(name)) for name, gap in zip("bc", sides, strict=True))
    assert difference(one, other) == ""


def test_an_answer_that_ends_earlier() -> None:
    long = answer(token("a"), token("b"))
    assert "'the end' and 'b'" in difference(answer(token("a"), finish=STOP), long)
    assert difference(answer(token("a"), finish=STOP), answer(token("a"), token("b", gap=0.1))) == ""


def test_same_tokens_with_other_labels() -> None:
    lost = answer(token("a"), token("b"))
    lost.text = "a"
    assert "became the texts" in difference(answer(token("a"), token("b")), lost)
    assert "became the texts" in difference(answer(token("a")), answer(token("a"), finish=STOP))


def test_the_first_pair_that_parts_is_named() -> None:
    same = (answer(token("a")), answer(token("a")))
    assert first_difference([same, same]) == ""
    assert first_difference([same, (answer(token("a")), answer(token("b")))]).startswith("answer 2 of 2: ")


def test_bits_per_byte() -> None:
    assert answer(token("ab", logprob=-math.log(2)), token("cd", logprob=0.0)).bits_per_byte() == pytest.approx(0.25)
    assert math.isnan(answer().bits_per_byte())
