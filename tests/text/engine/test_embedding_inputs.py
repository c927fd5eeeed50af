"""Embedding inputs: tokenized, checked, and never truncated silently."""

from __future__ import annotations

from typing import Any

import pytest

from services.text.engine import embedding_inputs
from services.text.engine.embedding_inputs import MAX_REQUEST_TOKENS, prepare
from services.text.engine.messages import Accepted, Embed
from services.worker.messages import Refused
from tests.case import case
from tests.text.engine.test_embedding_loop import CountingEncoder


def asked(inputs: list[str | list[int]], param: str = "input[]") -> tuple[Any, Any]:
    """Returns the arrival for the loop and the message for the caller."""
    told: list[object] = []
    arrival = prepare(
        CountingEncoder(), Embed(request=5, client="a", inputs=inputs, dimensions=3, param=param), told.append
    )
    (answer,) = told
    return arrival, answer


def test_texts_and_tokens_are_taken_side_by_side() -> None:
    arrival, accepted = asked(["abc", [1, 2], "é"])
    assert [tokens.tolist() for tokens in arrival.inputs] == [[97, 98, 99], [1, 2], [195, 169]]
    assert (arrival.request, arrival.client, arrival.dimensions) == (5, "a", 3)
    assert accepted == Accepted(5, 7)


def test_what_does_not_fit_is_refused_by_its_place() -> None:
    for inputs, param, code, named, words in [
        (["a", "x" * 1001], "input[]", "CONTEXT_LENGTH_EXCEEDED", "input[1]", ["1001", "1000"]),
        (["x" * 1001], "input", "CONTEXT_LENGTH_EXCEEDED", "input", ["1001", "1000"]),
        ([[1] * 2000], "inputs[]", "CONTEXT_LENGTH_EXCEEDED", "inputs[0]", ["2000", "1000"]),
        ([[1], [5, 10_000]], "input[]", "INVALID_REQUEST", "input[1]", ["token 10000", "0 to 9999"]),
        ([[-1]], "input[]", "INVALID_REQUEST", "input[0]", ["token -1"]),
        (["a", ""], "input[]", "INVALID_REQUEST", "input[1]", ["no tokens"]),
        (["x" * 1000] * 301, "input[]", "INVALID_REQUEST", "input", [str(MAX_REQUEST_TOKENS)]),
    ]:
        with case(inputs=inputs, param=param, code=code, named=named, words=words):
            arrival, refused = asked(inputs, param)
            assert arrival is None
            assert isinstance(refused, Refused)
            assert (refused.request, refused.code, refused.param) == (5, code, named)
            for word in (f"'{named}'", *words):
                assert word in refused.message


def test_exactly_as_much_as_is_allowed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_inputs, "MAX_REQUEST_TOKENS", 2000)
    assert asked(["x" * 1000] * 2)[1] == Accepted(5, 2000)
