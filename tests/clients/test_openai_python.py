"""The official Python SDK, unmodified, against the real stack with the real model."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.stack import ALIAS, MODEL, POLL_SECONDS, Stack
from tests.text.service import PATIENCE_SECONDS, STEPS, WAITING, counter, suspended, warm, workers

STREAMS, TOKENS = 32, 12
QUESTION: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0) as client:
        yield client


def test_models_are_listed(client: openai.OpenAI) -> None:
    (model,) = [model for model in client.models.list() if model.id == MODEL]
    assert (model.object, model.owned_by) == ("model", "allm")
    assert model.created > 1_600_000_000


def test_a_model_is_retrieved(client: openai.OpenAI) -> None:
    assert client.models.retrieve(MODEL).id == MODEL


def test_an_answer(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)
    (choice,) = reply.choices
    assert "Paris" in (choice.message.content or "")
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert reply.usage
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.id.startswith("chatcmpl-")
    assert reply.model == MODEL
    assert reply._request_id


def test_an_alias_answers(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=ALIAS, messages=QUESTION, temperature=0, max_tokens=4)
    assert reply.choices[0].message.content


def test_a_stream_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "Paris" in "".join(text for text in texts if text)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert not chunks[-1].choices
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32) as stream:
        for _ in stream:
            pass
        assert "Paris" in (stream.get_final_completion().choices[0].message.content or "")


def test_the_same_answer_streamed_and_not(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, seed=1, max_tokens=16)
    parts = client.chat.completions.create(model=MODEL, messages=QUESTION, seed=1, max_tokens=16, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in parts)
    assert streamed == whole.choices[0].message.content


async def test_streams_run_side_by_side(stack: Stack) -> None:
    """The streams share steps: without batching they would take more than `STREAMS * TOKENS`."""

    async def tokens(client: openai.AsyncOpenAI) -> int:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        *_, last = [chunk async for chunk in stream]
        return last.usage.completion_tokens if last.usage else 0

    await asyncio.to_thread(warm, stack)
    async with openai.AsyncOpenAI(base_url=stack.base_url, api_key="unused", max_retries=0) as client:
        async with asyncio.timeout(PATIENCE_SECONDS):
            with suspended(workers(stack)):  # it finds all of them at once
                streams = [asyncio.create_task(tokens(client)) for _ in range(STREAMS)]
                while counter(stack, WAITING) < STREAMS:  # noqa: ASYNC110 (of other processes)
                    await asyncio.sleep(POLL_SECONDS)
                before = counter(stack, STEPS)
        assert await asyncio.gather(*streams) == [TOKENS] * STREAMS
    assert counter(stack, STEPS) - before < STREAMS * TOKENS / 4


def test_unknown_parameters_are_accepted(client: openai.OpenAI) -> None:
    client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2, extra_body={"made_up": {"a": 1}})


def test_an_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no/such-model") as raised:
        client.chat.completions.create(model="no/such-model", messages=QUESTION)
    assert (raised.value.code, raised.value.type) == ("model_not_found", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such-model")


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("messages", []),
        ("messages", "hello"),
        ("messages", [{"role": "nobody", "content": "x"}]),
        ("max_tokens", -1),
        ("max_tokens", "many"),
        ("temperature", 5),
        ("top_p", 0),
        ("stop", ["a"] * 1000),
        ("logit_bias", {"x": 1}),
        ("n", 1000),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("top_logprobs", 3),
        ("tools", [{"type": "custom", "custom": {"name": "x"}}]),
        ("tool_choice", "required"),
        ("store", True),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_parameter_is_named(client: openai.OpenAI, parameter: str, value: Any, stream: bool) -> None:
    body = {"model": MODEL, "messages": QUESTION, "stream": stream, parameter: value}
    with pytest.raises(openai.BadRequestError) as raised:
        client.post("/chat/completions", body=body, cast_to=object)
    assert raised.value.type == "invalid_request_error"
    assert (raised.value.param or "").startswith(parameter)
    assert raised.value.message


def test_overlong_prompt_is_reported_with_both_numbers(client: openai.OpenAI) -> None:
    messages: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "word " * 20_000}]
    with pytest.raises(openai.BadRequestError, match=r"8,?192") as raised:
        client.chat.completions.create(model=MODEL, messages=messages)
    assert raised.value.code == "context_length_exceeded"


def test_a_body_over_the_limit(client: openai.OpenAI) -> None:
    messages: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "x" * 40 * 1024 * 1024}]
    with pytest.raises(openai.APIStatusError, match="ALLM_MAX_BODY_BYTES") as raised:
        client.chat.completions.create(model=MODEL, messages=messages)
    assert raised.value.status_code == 413


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"text"', b"{}", b'{"model": 1}', b"\xff\xfe"])
def test_bodies_that_are_no_request(stack: Stack, body: bytes) -> None:
    request = urllib.request.Request(f"{stack.base_url}/chat/completions", body, method="POST")
    with pytest.raises(urllib.error.HTTPError) as raised, urllib.request.urlopen(request, timeout=30):
        pass
    with raised.value as reply:
        assert reply.code == 400
        error = json.loads(reply.read())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]


def test_parameters_of_other_servers_count_and_unknown_ones_are_named(client: openai.OpenAI) -> None:
    extra = {"guided_choice": ["yes", "no"], "temprature": 1, "chat_template_kwargs": {"nowhere": True}}
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Is it raining?"}], max_tokens=8, extra_body=extra
    )
    assert raw.headers["x-allm-ignored-parameters"] == "temprature, chat_template_kwargs.nowhere"
    assert raw.parse().choices[0].message.content in ("yes", "no")
    texts = client.completions.create(
        model=MODEL, prompt="It is", max_tokens=8, extra_body={"grammar": 'root ::= [0-9]{2} " o\'clock"'}
    )
    assert texts.choices[0].text[2:] == " o'clock"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x", max_tokens=8, extra_body={"guided_regex": "(?=x)"})
    assert caught.value.param == "guided_regex"


def test_a_deprecated_function_is_called_whole_and_streamed(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris"]}}, "required": ["city"]}
    asked: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
        "functions": [{"name": "get_weather", "parameters": schema}],
        "function_call": {"name": "get_weather"},
        "max_tokens": 64,
        "temperature": 0,
    }
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call
    assert json.loads(choice.message.function_call.arguments)["city"] == "Paris"
    options = {"include_obfuscation": True}
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options=options))
    calls = [chunk.choices[0].delta.function_call for chunk in chunks if chunk.choices[0].delta.function_call]
    assert "".join(call.name or "" for call in calls) == "get_weather"
    assert json.loads("".join(call.arguments or "" for call in calls))["city"] == "Paris"
    assert chunks[-1].choices[0].finish_reason == "function_call"
