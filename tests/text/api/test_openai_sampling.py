"""Sampling parameters, which all endpoints read in the same way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.api import httpbody_pb2

from services.errors import InvalidRequest
from services.text.api import completions as openai_completions
from services.text.api.chat import openai_request as openai_chat_request
from services.text.api.messages import anthropic_request
from services.text.api.responses import openai_request as openai_responses_request
from services.text.engine.sampling import SamplingParams
from tests.case import case

GIVEN: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "seed": -1,
    "presence_penalty": 1,
    "frequency_penalty": -1,
    "repeat_penalty": 1.5,
    "stop": "end",
    "ignore_eos": True,
    "min_tokens": 3,
    "stop_token_ids": [7, 8],
}


def body(**parameters: Any) -> httpbody_pb2.HttpBody:
    return httpbody_pb2.HttpBody(data=json.dumps({"model": "m", **parameters}).encode())


def of_chat(**given: Any) -> SamplingParams:
    messages = [{"role": "user", "content": "hello"}]
    return openai_chat_request.read_request(body(messages=messages, max_tokens=5, **given))[1].sampling


def of_completions(**given: Any) -> SamplingParams:
    return openai_completions.read_request(body(prompt="hello", max_tokens=5, **given))[1].sampling


def of_responses(**given: Any) -> SamplingParams:
    return openai_responses_request.read_request(body(input="hello", max_output_tokens=5, **given))[1].settings.sampling


def of_messages(**given: Any) -> SamplingParams:
    asked = body(messages=[{"role": "user", "content": "hello"}], max_tokens=5, **given)
    return anthropic_request.read_request(asked, anthropic_request.CreateBody)[1].sampling


Read = Callable[..., SamplingParams]


@pytest.mark.parametrize("read", [of_chat, of_completions, of_responses, of_messages])
def test_every_parameter_is_read(read: Read) -> None:
    assert read(**GIVEN) == SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        seed=2**64 - 1,
        presence_penalty=1,
        frequency_penalty=-1,
        repeat_penalty=1.5,
        stop=("end",),
        max_tokens=5,
        ignore_eos=True,
        min_tokens=3,
        stop_token_ids=(7, 8),
    )


@pytest.mark.parametrize("read", [of_chat, of_completions, of_responses, of_messages])
def test_absent_or_null_values_are_defaults(read: Read) -> None:
    assert read() == read(**dict.fromkeys(GIVEN)) == SamplingParams(max_tokens=5)


def test_a_seed_beyond_64_bits_is_refused() -> None:
    for read in [of_chat, of_completions, of_responses, of_messages]:
        for seed in [2**63, -(2**63) - 1, 2**64 + 1]:
            with case(read=read, seed=seed):
                with pytest.raises(InvalidRequest) as caught:
                    read(seed=seed)
                assert caught.value.param == "seed"
