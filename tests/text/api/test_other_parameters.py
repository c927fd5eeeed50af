"""Parameters that no endpoint declares: vLLM's and llama.cpp's are refused if they would count, unknown ones named."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from google.api import httpbody_pb2
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as OfChat
from openai.types.completion_create_params import CompletionCreateParamsBase as OfCompletions
from openai.types.responses.response_create_params import ResponseCreateParamsBase as OfResponses

from services.errors import Unsupported
from services.text.api.chat.openai_request import ChatCompletionRequest
from services.text.api.completions import LegacyRequest
from services.text.api.embeddings import EmbeddingsRequest
from services.text.api.other_parameters import unknown_parameters
from services.text.api.rerank import RerankBody
from services.text.api.responses.openai_request import ResponseBody
from tests.case import case

KINDS = (ChatCompletionRequest, LegacyRequest, ResponseBody)


def unknown(kind: Any = ChatCompletionRequest, /, **given: Any) -> list[str]:
    return unknown_parameters(httpbody_pb2.HttpBody(data=json.dumps(given).encode()), kind)


def test_all_that_openai_has_is_known() -> None:
    for kind, params in zip(KINDS, (OfChat, OfCompletions, OfResponses), strict=True):
        with case(kind=kind):
            assert unknown(kind, **dict.fromkeys(get_type_hints(params), "x")) == []


def test_unknown_ones_are_named_and_nulls_are_not() -> None:
    for kind in KINDS:
        assert unknown(kind, model="m", temprature=1, top_k=1, stop_strings=None, x={"deep": [1]}) == [
            "temprature",
            "x",
        ]


def test_what_would_change_the_answer_is_refused_and_what_would_not_is_accepted() -> None:
    for name, refused, neutral in (
        ("use_beam_search", True, False),
        ("length_penalty", 0.5, 1.0),
        ("bad_words", ["x"], []),
        ("skip_special_tokens", False, True),
        ("mirostat", 2, 0),
        ("typical_p", 0.9, 1),
        ("dry_multiplier", 0.8, 0.0),
        ("n_predict", 5, -1),
        ("chat_template", "{{ x }}", None),
    ):
        with case(name=name):
            assert unknown(**{name: neutral}) == []
            with pytest.raises(Unsupported) as caught:
                unknown(**{name: refused})
            assert (caught.value.param, caught.value.http_status) == (name, 400)
    for kind in (EmbeddingsRequest, RerankBody):
        with case(kind=kind), pytest.raises(Unsupported, match="truncate_prompt_tokens"):
            unknown(kind, truncate_prompt_tokens=8)
    assert unknown(user="u", cache_prompt=True, dry_base=1.75, priority=3, client_metadata={}) == []
