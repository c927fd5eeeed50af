"""Bounds of a request: the last value that passes, the first that fails, and messages that name the parameter."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest

from services.errors import InvalidRequest
from services.text.conversation import ChatRequest, Message
from services.text.engine.sampling import SamplingParams
from services.text.limits import (
    MAX_BIASES,
    MAX_MESSAGES,
    MAX_SEED,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_TOKEN_ID,
    MAX_TOKENS,
    check,
)
from tests.case import case

HELLO = (Message(role="user", content="hello"),)


def request(messages: tuple[Message, ...] = HELLO, model: str = "m", **sampling) -> ChatRequest:
    return ChatRequest(model=model, messages=messages, sampling=SamplingParams(**sampling))


def refusal(asked: ChatRequest, **called: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check(asked, called)
    return caught.value


def test_the_defaults_pass() -> None:
    check(request())


BOUNDS = [
    ("temperature", (0, 1e-9, 2)),
    ("top_p", (1e-9, 1)),
    ("top_k", (0, 1, MAX_TOKENS)),
    ("min_p", (0, 1)),
    ("presence_penalty", (-2, 2)),
    ("frequency_penalty", (-2, 2)),
    ("repeat_penalty", (1e-9, 100)),
    ("seed", (None, 0, MAX_SEED)),
    ("max_tokens", (None, 1, MAX_TOKENS)),
    ("stop", ((), ("x",), ("x" * MAX_STOP_LENGTH,) * MAX_STOPS)),
    ("logit_bias", ((), ((0, -100), (MAX_TOKEN_ID, 100)), tuple((at, 0) for at in range(MAX_BIASES)))),
    ("ignore_eos", (False, True)),
    ("min_tokens", (0, 1, MAX_TOKENS)),
    ("stop_token_ids", ((), (0, MAX_TOKEN_ID), (7,) * MAX_STOP_TOKENS)),
]


def test_values_on_a_bound_pass_and_reach_the_worker() -> None:
    for name, values in BOUNDS:
        with case(name=name, values=values):
            for value in values:
                asked = request(**{name: value})
                check(asked)
                sent = msgspec.msgpack.encode(asked.sampling)
                assert msgspec.msgpack.decode(sent, type=SamplingParams) == asked.sampling


def test_every_parameter_of_sampling_has_a_bound_that_passes_above() -> None:
    """A new parameter needs a bound, or a reason to have none."""
    assert {name for name, _ in BOUNDS} == {field.name for field in dataclasses.fields(SamplingParams)}


def test_out_of_range_values_are_refused_by_name() -> None:
    for name, value, words in [
        ("temperature", -0.1, "must be 0 to 2, not -0.1"),
        ("temperature", 2.0001, "must be 0 to 2, not 2.0001"),
        ("temperature", math.nan, "must be 0 to 2, not nan"),
        ("temperature", math.inf, "must be 0 to 2, not inf"),
        ("top_p", 0, "must be above 0 to 1, not 0"),
        ("top_p", 1.1, "must be above 0 to 1, not 1.1"),
        ("top_p", math.nan, "must be above 0 to 1, not nan"),
        ("top_k", -1, "must be 0 to 2147483647, not -1"),
        ("top_k", MAX_TOKENS + 1, "must be 0 to 2147483647, not 2147483648"),
        ("top_k", 10**400, "must be 0 to 2147483647, not 1000"),
        ("min_p", -0.1, "must be 0 to 1, not -0.1"),
        ("min_p", 1.5, "must be 0 to 1, not 1.5"),
        ("presence_penalty", 2.5, "must be -2 to 2, not 2.5"),
        ("frequency_penalty", -2.5, "must be -2 to 2, not -2.5"),
        ("frequency_penalty", -math.inf, "must be -2 to 2, not -inf"),
        ("repeat_penalty", 0, "must be above 0 to 100, not 0"),
        ("repeat_penalty", 101, "must be above 0 to 100, not 101"),
        ("seed", -1, "must be 0 to 18446744073709551615, not -1"),
        ("seed", MAX_SEED + 1, "must be 0 to 18446744073709551615, not 18446744073709551616"),
        ("max_tokens", 0, "must be 1 to 2147483647, not 0"),
        ("max_tokens", -5, "must be 1 to 2147483647, not -5"),
        ("max_tokens", MAX_TOKENS + 1, "must be 1 to 2147483647, not 2147483648"),
        ("stop", ("",), "must contain strings of 1 to 256 characters, not of 0"),
        ("stop", ("ok", "x" * 257), "must contain strings of 1 to 256 characters, not of 257"),
        ("stop", ("x",) * 17, "has 17 entries; at most 16 are allowed"),
        ("logit_bias", ((5, 100.5),), "of token 5 must be -100 to 100, not 100.5"),
        ("logit_bias", ((5, math.nan),), "of token 5 must be -100 to 100, not nan"),
        ("logit_bias", ((5, -math.inf),), "of token 5 must be -100 to 100, not -inf"),
        ("logit_bias", ((-1, 1),), "contains token -1"),
        ("logit_bias", ((MAX_TOKEN_ID + 1, 1),), "contains token 2147483648"),
        ("logit_bias", ((10**30, 1),), "contains token 1000"),
        ("min_tokens", -1, "must be 0 to 2147483647, not -1"),
        ("min_tokens", MAX_TOKENS + 1, "must be 0 to 2147483647, not 2147483648"),
        ("stop_token_ids", (-1,), "contains token -1"),
        ("stop_token_ids", (MAX_TOKEN_ID + 1,), "contains token 2147483648"),
        ("stop_token_ids", (7,) * 257, "has 257 entries; at most 256 are allowed"),
        ("logit_bias", tuple((at, 0) for at in range(1025)), "has 1025 entries; at most 1024 are allowed"),
    ]:
        with case(name=name, value=value, words=words):
            error = refusal(request(**{name: value}))
            assert error.param == name
            assert error.message.startswith(f"'{name}' {words}")


def test_a_request_needs_a_model_and_a_message() -> None:
    assert refusal(request(model="")).param == "model"
    error = refusal(request(messages=()))
    assert (error.param, error.message) == (
        "messages",
        "'messages' is empty: a conversation needs at least one message.",
    )


def test_a_conversation_has_a_longest_length() -> None:
    check(request(messages=HELLO * MAX_MESSAGES))
    error = refusal(request(messages=HELLO * (MAX_MESSAGES + 1)))
    assert error.message == f"'messages' has {MAX_MESSAGES + 1} entries; at most {MAX_MESSAGES} are allowed."
    assert error.param == "messages"


@pytest.mark.parametrize(("name", "other"), [("max_tokens", "max_completion_tokens"), ("top_k", "best_of")])
def test_a_parameter_is_named_as_the_caller_named_it(name: str, other: str) -> None:
    error = refusal(request(**{name: -1}), **{name: other})
    assert error.param == other
    assert error.message.startswith(f"'{other}' must be")
    assert refusal(request(**{name: -1}), temperature="heat").param == name
