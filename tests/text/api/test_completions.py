"""Legacy completions: each parameter of the official SDK is read or refused; objects match OpenAI's; real weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from google.api import httpbody_pb2
from openai.types import Completion
from openai.types.completion_create_params import (
    CompletionCreateParamsBase,
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from services.errors import AllmError, InvalidRequest, Unsupported
from services.text.api.completions import CompletionRequest, LegacyRequest, LegacyWriter, read_request
from services.text.conversation import Usage
from services.text.engine.messages import TokenLogprob
from services.text.running_answer import AnswerContent
from tests.case import case
from tests.stack import MODEL, Stack

USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
HEAD = {"id": "cmpl-1", "created": 1_700_000_000, "model": "m"}
COUNTING = "one two three four five six seven"


def read(**parameters: Any) -> CompletionRequest:
    data = json.dumps({"model": "m", "prompt": "hello"} | parameters).encode()
    return read_request(httpbody_pb2.HttpBody(content_type="application/json", data=data))[1]


def refusal(**parameters: Any) -> AllmError:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        read(**parameters)
    assert caught.value.http_status == 400
    return caught.value


def test_openais_defaults() -> None:
    request = read()
    assert request.prompts == ("hello",)
    assert (request.choices, request.logprobs, request.sampling.max_tokens) == (1, None, 16)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("x", ("x",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2, 3], ([1, 2, 3],)),
        ([[1, 2], [3]], ([1, 2], [3])),
    ],
)
def test_every_form_of_a_prompt(prompt: Any, expected: tuple[Any, ...]) -> None:
    assert read(prompt=prompt).prompts == expected


def test_impossible_values_are_refused_by_name() -> None:
    for parameters, param in [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"model": ""}, "model"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"prompt": ["x"] * 100, "n": 2}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"echo": True, "logprobs": 1, "suffix": "x"}, "echo"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ]:
        with case(parameters=parameters, param=param):
            assert refusal(**parameters).param == param


def test_every_parameter_of_the_official_sdk_is_read_or_without_effect() -> None:
    kinds = (CompletionCreateParamsBase, CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming)
    official = {name for kind in kinds for name in kind.__annotations__}
    assert official - set(LegacyRequest.__struct_fields__) == {"user"}
    assert read(user="u", invented=1) == read()


def test_a_prompt_with_logprobs_is_scored_and_may_be_all() -> None:
    scored = read(echo=True, logprobs=2, max_tokens=0)
    assert (scored.scored, scored.prompt_only, scored.sampling.max_tokens) == (True, True, 1)
    assert (read(echo=True).scored, read(logprobs=2).scored, read(echo=True, logprobs=0).scored) == (False, False, True)


async def test_the_tokens_of_a_prompt_have_their_places_in_its_text() -> None:
    """A tokenizer may put a token or a space before the text, and divide a character."""
    tokens = [b"<s>", b" Hi", b" \xf0\x9f", b"\x98\x80", b"!"]
    prompt = [TokenLogprob(piece, -float(at), [(b"x", -0.5)]) for at, piece in enumerate(tokens)]
    content = AnswerContent(text=" Yo", logprobs=[TokenLogprob(b" Yo", -9.0, [])], finish="length")
    content.prompt_logprobs = prompt
    value = await LegacyWriter(HEAD, logprobs=True).whole([content], ["Hi 😀!"], USAGE)
    (choice,) = Completion.construct(**value).choices  # its types deny the nulls that OpenAI's API sends
    assert choice.text == "Hi 😀! Yo"
    assert choice.logprobs.tokens == ["<s>", " Hi", " \ufffd", "\ufffd\ufffd", "!", " Yo"]
    assert choice.logprobs.token_logprobs == [None, -1.0, -2.0, -3.0, -4.0, -9.0]
    assert choice.logprobs.top_logprobs[:2] == [None, {"x": -0.5, " Hi": -1.0}]
    assert choice.logprobs.text_offset == [0, 0, 2, 3, 4, 5]


async def test_a_whole_answer_is_openais() -> None:
    tokens = [TokenLogprob(b"Hi", -0.5, [(b"Hi", -0.5), (b"Yo", -1.5)]), TokenLogprob(b"!", -0.1, [(b"!", -0.1)])]
    said = [AnswerContent(text="Hi!", logprobs=tokens, finish="stop")]
    value = await LegacyWriter(HEAD, logprobs=True).whole(said, [""], USAGE)
    Completion.model_validate(value, strict=True)
    assert value["choices"][0]["logprobs"] == {
        "tokens": ["Hi", "!"],
        "token_logprobs": [-0.5, -0.1],
        "top_logprobs": [{"Hi": -0.5, "Yo": -1.5}, {"!": -0.1}],
        "text_offset": [0, 2],
    }
    echoed = await LegacyWriter(HEAD, logprobs=False).whole(said, ["Say: "], USAGE)
    assert echoed["choices"][0]["text"] == "Say: Hi!"
    assert echoed["choices"][0]["logprobs"] is None


# --- on the real stack


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0) as client:
        yield client


def test_a_text_goes_on(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=COUNTING, temperature=0, max_tokens=4)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    (choice,) = answer.choices
    assert "eight" in choice.text
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 4
    echoed = client.completions.create(model=MODEL, prompt=COUNTING, temperature=0, max_tokens=4, echo=True)
    assert echoed.choices[0].text == COUNTING + choice.text


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=COUNTING, temperature=0, max_tokens=8)
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt=COUNTING,
            temperature=0,
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8


def test_several_prompts_and_choices_are_in_order(client: openai.OpenAI) -> None:
    prompts = [COUNTING, "The capital of France is"]
    answer = client.completions.create(model=MODEL, prompt=prompts, n=2, temperature=0, max_tokens=6)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert "eight" in answer.choices[0].text
    assert "eight" in answer.choices[1].text
    assert all("Paris" in choice.text for choice in answer.choices[2:])


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_tokens_is_echoed_as_text(client: openai.OpenAI, stream: bool) -> None:
    def text(tokens: Any, **parameters: Any) -> list[str]:
        asked = {"model": MODEL, "prompt": tokens, "max_tokens": 1, "logit_bias": {"50": 100}, **parameters}
        if not stream:
            return [choice.text for choice in client.completions.create(**asked).choices]
        texts = ["" for _ in tokens]
        for chunk in client.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        return texts

    prompts = [[30], [40], [30, 40]]
    echoed, plain = text(prompts, echo=True), text(prompts)
    assert all(whole.endswith(rest) for whole, rest in zip(echoed, plain, strict=True))
    first, second, both = (whole.removesuffix(rest) for whole, rest in zip(echoed, plain, strict=True))
    assert first + second == both
    assert all((first, second))


def test_a_prompt_is_scored_as_evaluation_harnesses_do(client: openai.OpenAI) -> None:
    """lm-evaluation-harness sends contexts with their continuations as tokens, and counts logprobs from both ends."""
    prompts = [[504, 3575, 282, 4649, 314, end] for end in (7042, 30)]  # The capital of France is Paris, or not
    asked = {"model": MODEL, "prompt": prompts, "temperature": 0, "echo": True, "logprobs": 1, "seed": 1234}
    one = client.completions.create(**asked, max_tokens=1)
    (paris,), (other,) = (choice.logprobs.token_logprobs[5:-1] for choice in one.choices)
    assert paris > other
    reported = one.choices[0].logprobs
    assert "".join(reported.tokens) == one.choices[0].text
    assert "".join(reported.tokens[:6]) == "The capital of France is Paris"
    assert reported.token_logprobs[0] is reported.top_logprobs[0] is None
    assert reported.text_offset[:7] == [0, 3, 11, 14, 21, 24, 30]
    assert reported.token_logprobs[5] == max(reported.top_logprobs[5].values()), "it is the likeliest"
    assert one.usage.completion_tokens == 2
    none = client.completions.create(**asked, max_tokens=0)
    for choice, whole in zip(none.choices, one.choices, strict=True):
        assert choice.finish_reason == "length"
        assert choice.text == "".join(whole.logprobs.tokens[:6])
        assert choice.logprobs.tokens == whole.logprobs.tokens[:6]
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(whole.logprobs.token_logprobs[1:6], abs=0.02)
    assert (none.usage.completion_tokens, none.usage.prompt_tokens) == (0, 12)


def test_a_scored_prompt_is_streamed_like_a_whole_one(client: openai.OpenAI) -> None:
    prompt = "".join(f" {number} and" for number in range(400))
    asked = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 3, "echo": True, "logprobs": 2}
    whole = client.completions.create(**asked).choices[0]
    text, found = "", {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            text += choice.text
            for name in found if choice.logprobs else ():
                found[name] += getattr(choice.logprobs, name)
    assert text == whole.text
    assert text.startswith(prompt)
    for name in ("tokens", "text_offset"):
        assert found[name] == getattr(whole.logprobs, name)
    assert len(found["tokens"]) > 512, "it comes in several parts"
    assert found["token_logprobs"][1:] == pytest.approx(whole.logprobs.token_logprobs[1:], abs=0.02)
    assert [text[at : at + len(token)] for at, token in zip(found["text_offset"], found["tokens"], strict=True)] == (
        found["tokens"]
    )


def test_scored_prompts_of_one_request_are_bounded(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="may have 131072 tokens of prompts") as caught:
        client.completions.create(model=MODEL, prompt=["a " * 3000] * 64, max_tokens=0, echo=True, logprobs=0)
    assert caught.value.param == "prompt"


def test_tokens_are_a_prompt_and_logprobs_add_up(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[1, 2, 30], temperature=0, max_tokens=3, logprobs=2)
    reported = answer.choices[0].logprobs
    assert answer.usage.prompt_tokens == 3
    assert (
        len(reported.tokens) == len(reported.token_logprobs) == len(reported.top_logprobs) == len(reported.text_offset)
    )
    with pytest.raises(openai.BadRequestError, match="contains token 10000000"):
        client.completions.create(model=MODEL, prompt=[10_000_000])
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x " * 20_000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
