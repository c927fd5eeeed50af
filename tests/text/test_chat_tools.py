"""Tools, schemas, logprobs and several choices, on the real stack with real weights and the official client."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import grpc
import openai
import pytest
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc

from tests.stack import MODEL, Stack

CITIES = ["Paris", "London"]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": WEATHER, "strict": True},
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0) as client:
        yield client


def check_weather(arguments: str) -> None:
    value = json.loads(arguments)
    assert set(value) == {"city", "days"}
    assert value["city"] in CITIES
    assert 1 <= value["days"] <= 9


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_tool_that_must_be_called_is_called_by_its_schema(client: openai.OpenAI, temperature: float) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice=NAMED, temperature=temperature
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    check_weather(call.function.arguments)


def test_a_streamed_call_has_indexes_and_adds_up(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice=NAMED, temperature=0
    ) as stream:
        deltas = [
            delta
            for event in stream
            if event.type == "chunk"
            for choice in event.chunk.choices
            for delta in choice.delta.tool_calls or ()
        ]
        final = stream.get_final_completion()
    assert {delta.index for delta in deltas} == {0}
    assert [bool(delta.id) for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert len(deltas) > 3, "arguments stream"
    arguments = "".join(delta.function.arguments or "" for delta in deltas)
    check_weather(arguments)
    (call,) = final.choices[0].message.tool_calls
    assert call.function.arguments == arguments
    assert final.choices[0].finish_reason == "tool_calls"


def test_a_conversation_goes_on_with_the_result(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    message = first.choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "22 degrees"}
    second = client.chat.completions.create(
        model=MODEL, messages=[*QUESTION, message, result], tools=[TOOL], tool_choice="none", max_tokens=30
    )
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].message.content


def test_a_schema_is_followed_even_when_the_sampling_is_wild(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
            "ok": {"type": "boolean"},
        },
        "required": ["name", "tags", "ok"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Invent a thing."}],
        response_format=wanted,
        temperature=1.5,
        n=4,
        stop=['"', "}"],
        max_tokens=400,
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        value = json.loads(choice.message.content)
        assert set(value) == {"name", "tags", "ok"}
        assert len(value["name"]) <= 12
        assert set(value["tags"]) <= {"a", "b"}
        assert isinstance(value["ok"], bool)


def test_any_object_will_do_if_so_asked(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Give me a small JSON object."}],
        response_format={"type": "json_object"},
        max_tokens=40,
        temperature=0,
    )
    choice = answer.choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.message.content.lstrip().startswith("{")


def test_a_schema_that_cannot_be_followed_is_refused_by_its_keyword(client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        client.chat.completions.create(model=MODEL, messages=QUESTION, response_format=wanted)
    assert caught.value.param == "response_format"


def test_logprobs_are_those_of_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        logprobs=True,
        top_logprobs=3,
        temperature=0,
        max_tokens=8,
    )
    choice = answer.choices[0]
    tokens = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    for token in tokens:
        assert -math.inf < token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token, "greedy takes the likeliest"
        likeliest = [other.logprob for other in token.top_logprobs]
        assert likeliest == sorted(likeliest, reverse=True)
        assert sum(map(math.exp, likeliest)) <= 1.001


def test_several_answers_share_the_prompt(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "Say a colour. " * 60}]
    answer = client.chat.completions.create(model=MODEL, messages=long, n=3, temperature=1, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens <= 24
    again = client.chat.completions.create(model=MODEL, messages=long, n=2, seed=7, temperature=1, max_tokens=24)
    assert again.choices[0].message.content != again.choices[1].message.content, "a seed for each"


def test_effort_is_refused_without_support(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=QUESTION, reasoning_effort="high")
    assert caught.value.param == "reasoning_effort"


def typed_request(**fields: Any) -> chat_service_pb2.StreamChatCompletionRequest:
    message = chat_pb2.ChatMessage(
        role=chat_pb2.CHAT_ROLE_USER, content=[chat_pb2.ContentPart(text="What is the weather in Paris?")]
    )
    return chat_service_pb2.StreamChatCompletionRequest(
        model=MODEL, messages=[message], sampling=chat_pb2.SamplingParameters(temperature=0, max_tokens=300), **fields
    )


def test_the_typed_api_has_the_same_power(stack: Stack) -> None:
    tool = chat_pb2.Tool(name="get_weather", parameters_json=json.dumps(WEATHER), strict=True)
    choice = chat_pb2.ToolChoice(mode=chat_pb2.ToolChoice.MODE_REQUIRED, names=["get_weather"])
    with grpc.insecure_channel(stack.grpc_address) as channel:
        chat = chat_service_pb2_grpc.ChatServiceStub(channel)
        events = list(chat.StreamChatCompletion(typed_request(tools=[tool], tool_choice=choice)))
        assert [event.WhichOneof("event") for event in events[:2]] == ["started", "delta"]
        calls = [event.delta.tool_call for event in events[1:-1]]
        assert calls[0].name == "get_weather"
        assert calls[0].id
        check_weather("".join(call.arguments_json for call in calls))
        finished = events[-1].finished
        assert finished.finish_reason == chat_pb2.FINISH_REASON_TOOL_CALLS
        assert finished.usage.completion_tokens > 0

        output = chat_pb2.OutputFormat(json_schema=json.dumps(WEATHER))
        events = list(chat.StreamChatCompletion(typed_request(output_format=output, choices=2, top_logprobs=1)))
        texts = {0: "", 1: ""}
        for event in events:
            texts[event.delta.index] += event.delta.text
        for text in texts.values():
            check_weather(text)
        ends = [event.finished for event in events if event.WhichOneof("event") == "finished"]
        assert sorted(end.index for end in ends) == [0, 1]
        assert [end.HasField("usage") for end in ends] == [False, True]
        assert any(event.delta.logprobs for event in events)
