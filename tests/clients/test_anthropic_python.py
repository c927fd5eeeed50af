"""Anthropic's official Python SDK, unmodified, against the real stack with the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, TextBlock, ToolUseBlock

from tests.case import case
from tests.stack import ALIAS, MODEL, Stack

QUESTION = "What is the capital of France?"
# The SDK has no parameters for sampling any more; the API does.
ALIKE: dict[str, Any] = {"extra_body": {"seed": 1}}  # the same answer to the same prompt
LIKELIEST: dict[str, Any] = {"extra_body": {"temperature": 0, "top_p": 0.9, "top_k": 5}}
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "The weather of a city.", "input_schema": CITY}
ONE_OF_THEM = {"type": "any", "disable_parallel_tool_use": True}
CLOCK = {"name": "get_time", "description": "The time in a city.", "input_schema": CITY}


@pytest.fixture
def client(stack: Stack) -> Iterator[anthropic.Anthropic]:
    url = stack.base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, said: Any = QUESTION, **parameters: Any) -> Message:
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    message = client.messages.create(**{"model": MODEL, "messages": messages, "max_tokens": 32, **parameters})
    assert isinstance(message, Message)
    return message


def text(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def calls(message: Message) -> list[ToolUseBlock]:
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def prompt_tokens(message: Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_an_answer(client: anthropic.Anthropic) -> None:
    message = ask(client, model=ALIAS, metadata={"user_id": "u"}, **LIKELIEST)
    assert "Paris" in text(message)
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.id.startswith("msg_")
    assert message.usage.output_tokens > 1
    assert message._request_id
    assert ask(client, max_tokens=2).stop_reason == "max_tokens"


def test_an_answer_may_ask_for_more_than_there_is_room(client: anthropic.Anthropic) -> None:
    """Clients ask for the most that they ever want, whatever the context."""
    context = client.models.retrieve(MODEL).max_tokens or 0
    assert ask(client, max_tokens=context, stop_sequences=[" is"], **LIKELIEST).stop_sequence == " is"


def test_the_events_of_a_stream(client: anthropic.Anthropic) -> None:
    events = list(client.messages.create(model=MODEL, messages=hello(), max_tokens=8, stream=True, **ALIKE))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}  # the SDK hides pings
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def hello() -> list[Any]:
    return [{"role": "user", "content": QUESTION}]


def test_a_stream_equals_the_whole(client: anthropic.Anthropic) -> None:
    forced = {"tools": [WEATHER], "tool_choice": ONE_OF_THEM, "max_tokens": 100}
    for parameters in ({"system": "You are a pirate."}, {"stop_sequences": ["France"]}, forced):
        with case(parameters=parameters):
            asked: dict[str, Any] = {"model": MODEL, "messages": hello(), "max_tokens": 16, **parameters, **ALIKE}
            whole = ask(client, **asked)
            with client.messages.stream(**asked) as stream:
                streamed = stream.get_final_message()
            kept = {"content", "stop_reason", "stop_sequence", "usage"}
            assert _comparable(streamed, kept) == _comparable(whole, kept)
            assert whole.content


def _comparable(message: Message, kept: set[str]) -> Any:
    shown = message.model_dump(include=kept, exclude_none=True)
    for block in shown["content"]:
        block.pop("id", None)  # of a call: random
        block.pop("parsed_output", None)
    return shown


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    message = ask(client, stop_sequences=["Berlin", "Paris"], **LIKELIEST)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Paris")
    assert text(message)
    assert "Paris" not in text(message)


def test_tools_are_called_and_answered(client: anthropic.Anthropic) -> None:
    """Parallel calls, of which one fails; the model has read all of it."""
    tools = [WEATHER, CLOCK]
    question = {"role": "user", "content": "Weather and time in Paris?"}
    message = ask(client, [question], tools=tools, tool_choice=ONE_OF_THEM, max_tokens=100, **LIKELIEST)
    assert message.stop_reason == "tool_use"
    (first,) = calls(message)
    assert first.input["city"] in ("Paris", "Rome")
    other = {"type": "tool_use", "id": "toolu_other", "name": "get_time", "input": {"city": "Paris"}}
    said = {"role": "assistant", "content": [{"type": "text", "text": "I look."}, first.to_dict(), other]}
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": first.id, "content": [{"type": "text", "text": "Sunny."}]},
        {"type": "tool_result", "tool_use_id": "toolu_other", "content": "no clock", "is_error": True},
        {"type": "text", "text": "Now answer."},
    ]
    turns = [question, said, {"role": "user", "content": results}]
    final = ask(client, turns, tools=tools, tool_choice={"type": "none"}, max_tokens=8, **LIKELIEST)
    assert text(final)
    assert not calls(final)
    counts = []
    for upto in (1, 2, 3):
        given: Any = {"messages": [question, said, {"role": "user", "content": results[:upto]}], "tools": tools}
        counts.append(client.messages.count_tokens(model=MODEL, **given).input_tokens)
    assert counts == sorted(set(counts)), "the model reads every block"


def test_a_named_tool_is_called_once(client: anthropic.Anthropic) -> None:
    choice = {"type": "tool", "name": "get_time"}
    message = ask(client, "Weather in Rome?", tools=[WEATHER, CLOCK], tool_choice=choice, max_tokens=100, **LIKELIEST)
    assert [call.name for call in calls(message)] == ["get_time"]
    assert message.stop_reason == "tool_use"


def test_tools_that_only_anthropic_defines_are_left_out(client: anthropic.Anthropic) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    asked: dict[str, Any] = {"model": MODEL, "messages": hello(), "max_tokens": 1}
    raw = client.messages.with_raw_response.create(tools=[search, WEATHER], **asked, extra_body={"made_up": 1})
    assert raw.headers["x-allm-ignored-parameters"] == "made_up, tools[0].web_search_20250305"
    with pytest.raises(anthropic.BadRequestError, match="web_search_20250305"):
        client.messages.create(tools=[search], **asked)


def test_json_that_follows_a_schema(client: anthropic.Anthropic) -> None:
    schema = {**CITY, "additionalProperties": False}
    message = ask(
        client, output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=64, **LIKELIEST
    )
    assert json.loads(text(message))["city"] in ("Paris", "Rome")


def test_thinking_is_a_wish(client: anthropic.Anthropic) -> None:
    """Claude Code asks every model for it."""
    asked: dict[str, Any] = {"model": MODEL, "messages": hello(), "max_tokens": 2}
    budget: Any = {"type": "enabled", "budget_tokens": 1024}
    raw = client.messages.with_raw_response.create(thinking=budget, **asked)
    assert raw.headers["x-allm-ignored-parameters"] == "thinking"
    assert text(raw.parse())
    for silent in ({}, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive"}}):
        assert "x-allm-ignored-parameters" not in client.messages.with_raw_response.create(**asked, **silent).headers


def test_tokens_are_counted_and_cached(client: anthropic.Anthropic) -> None:
    system = {"system": [{"type": "text", "text": "Be brief. " * 20, "cache_control": {"type": "ephemeral"}}]}
    counted = client.messages.count_tokens(model=MODEL, messages=hello(), tools=[WEATHER], **system)  # type: ignore[arg-type]
    message = ask(client, tools=[WEATHER], max_tokens=1, **system)
    assert prompt_tokens(message) == counted.input_tokens > 60
    again = ask(client, tools=[WEATHER], max_tokens=1, **system)
    assert prompt_tokens(again) == counted.input_tokens
    assert again.usage.cache_read_input_tokens
    seeded = ask(client, tools=[WEATHER], max_tokens=1, **system, **ALIKE)  # it reads no cache
    assert seeded.usage.input_tokens == counted.input_tokens


def test_the_beta_client(client: anthropic.Anthropic) -> None:
    message = client.beta.messages.create(
        model=MODEL, messages=hello(), max_tokens=1, betas=["context-management-2025-06-27"], context_management={}
    )
    assert message.stop_reason == "max_tokens"


def test_models(client: anthropic.Anthropic) -> None:
    listed = client.models.list(limit=1)
    names = [model.id for model in listed]  # every page
    assert {MODEL, ALIAS} <= set(names)
    assert len(names) == len(set(names))
    assert listed.has_more
    model = client.models.retrieve(MODEL)
    assert (model.type, model.display_name, model.lifecycle) == ("model", MODEL, "active")
    assert model.created_at.year > 2020
    assert client.models.list(after_id=names[-2]).data == [client.models.retrieve(names[-1])]
    assert [each.id for each in client.models.list(before_id=names[2], limit=1).data] == [names[1]]


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


@pytest.mark.parametrize(
    ("parameters", "kind", "named"),
    [
        ({"model": "no-such-model"}, anthropic.NotFoundError, "no-such-model"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "'max_tokens' must be 1"),
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError, "'temperature' must be 0 to 2"),
        ({"stop_sequences": [""]}, anthropic.BadRequestError, "'stop_sequences'"),
        ({"messages": []}, anthropic.BadRequestError, "'messages' is empty"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, anthropic.BadRequestError, "does not see pictures"),
        ({"messages": [*hello(), {"role": "assistant", "content": "It"}]}, anthropic.BadRequestError, "prefill"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "'tools' is empty"),
        ({"tools": [{"name": "no spaces", "input_schema": CITY}]}, anthropic.BadRequestError, "tools[0]"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, anthropic.BadRequestError, "prompt is too long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_have_anthropics_shape(
    client: anthropic.Anthropic, parameters: dict[str, Any], kind: type[anthropic.APIStatusError], named: str
) -> None:
    for stream in (False, True):
        with pytest.raises(kind) as raised:
            ask(client, **parameters, stream=stream)
        error: Any = raised.value.body
        assert set(error) == {"type", "error", "request_id"}
        assert (error["type"], set(error["error"])) == ("error", {"type", "message"})
        assert named in error["error"]["message"]
        assert error["error"]["type"] == raised.value.type
        assert error["request_id"] == raised.value.request_id == raised.value.response.headers["x-request-id"]


def test_threads_are_refused_in_the_sdks_words(client: anthropic.Anthropic) -> None:
    """Otherwise its helpers would send only what is new in each turn."""
    with pytest.raises(anthropic.BadRequestError, match="'thread'") as raised:
        ask(client, extra_body={"thread": {"type": "create"}})
    error: Any = raised.value.body
    assert error["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_max_tokens_is_required(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="Missing required parameter: 'max_tokens'"):
        client.post("/v1/messages", body={"model": MODEL, "messages": hello()}, cast_to=Message)


async def test_a_disconnect_ends_the_answer(stack: Stack) -> None:
    url = stack.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=0) as client:
        for _ in range(3):
            async with client.messages.stream(model=MODEL, messages=hello(), max_tokens=4000) as stream:
                await anext(aiter(stream))
