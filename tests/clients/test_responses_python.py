"""The Responses API of the official Python SDK, unmodified, against the real stack with the real model."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseOutputMessage, ResponseStreamEvent
from pydantic import BaseModel, Field, TypeAdapter

from tests.response_fields import REQUIRED
from tests.stack import ALIAS, MODEL, POLL_SECONDS, Stack

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
QUESTION = "What is the capital of France?"
PATIENCE_SECONDS = 60
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
# With a seed the same prompt gives the same text, whether or not the prefix cache holds it.
ALIKE: Any = {"extra_body": {"seed": 1}, "max_output_tokens": 8}
FORCED: Any = {"type": "function", "name": "get_weather"}


class City(BaseModel):
    """The schema of the answer."""

    model_config = {"extra": "forbid"}
    country: str = Field(max_length=20)  # a small model may not end an unlimited one
    inhabitants: int = Field(ge=0, le=9_999_999)


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.base_url, api_key="unused", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, given: Any = QUESTION, **parameters: Any) -> Response:
    """Returns a whole response, checked against the official types and for the required fields."""
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 32, **parameters}
    response: Response = client.responses.create(input=given, **asked)
    Response.model_validate(response.to_dict(), strict=True)
    assert not REQUIRED - set(response.to_dict())
    return response


def input_tokens(response: Response) -> int:
    """Returns the length of the whole prompt in tokens."""
    assert response.usage
    return response.usage.input_tokens


def raw_events(stack: Stack, body: dict[str, Any] | None, path: str = "/responses") -> list[dict[str, Any]]:
    """Returns the events of a stream, parsed from its bytes, each checked against the official types."""
    data = None if body is None else json.dumps({"model": MODEL, "stream": True, **body}).encode()
    with urllib.request.urlopen(urllib.request.Request(stack.base_url + path, data), timeout=60) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        blocks = reply.read().decode().split("\n\n")
    assert blocks.pop() == ""
    events = []
    for block in blocks:
        name, data_line = block.split("\n")
        event = json.loads(data_line.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event, strict=True)
        assert not REQUIRED - set(event.get("response", REQUIRED))
        events.append(event)
    return events


def ended(client: openai.OpenAI, response: Response) -> Response:
    """Polls a background response until it has ended, as the SDK's users do."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
        response = client.responses.retrieve(response.id)
    return response


# --- the public compliance checks: basic text, streaming, system prompt, tools, images, turns


def test_a_basic_text(client: openai.OpenAI) -> None:
    response = ask(client)
    assert "Paris" in response.output_text
    assert (response.status, response.model, response.error) == ("completed", MODEL, None)
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    assert (message.status, message.role) == ("completed", "assistant")
    assert response.usage
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert ask(client, model=ALIAS, max_output_tokens=1).model == MODEL


def test_the_order_of_a_stream(stack: Stack) -> None:
    events = raw_events(stack, {"input": QUESTION, "temperature": 0, "max_output_tokens": 32})
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    final = events[-1]["response"]
    assert text == final["output"][0]["content"][0]["text"]
    assert {event["item_id"] for event in events if "item_id" in event} == {final["output"][0]["id"]}
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=32) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == final.output_text
    assert "Paris" in final.output_text


def test_a_system_prompt(client: openai.OpenAI) -> None:
    reported = ask(client, "Hi", instructions="You are a pirate.", **ALIKE)
    assert reported.instructions == "You are a pirate."
    items = [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Hi"}]
    as_message = ask(client, items, **ALIKE)
    assert as_message.output_text == reported.output_text != ""
    assert input_tokens(as_message) == input_tokens(reported) != input_tokens(ask(client, "Hi", max_output_tokens=1))


def test_a_tool_is_called_and_answered(client: openai.OpenAI) -> None:
    asked = {"tools": [WEATHER], "tool_choice": FORCED, "parallel_tool_calls": False, "max_output_tokens": 200}
    first = ask(client, "Weather in Paris?", **asked)
    (call,) = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.status) == ("get_weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."}
    by_id = ask(client, [result], previous_response_id=first.id, tools=[WEATHER], tool_choice="none", **ALIKE)
    whole = [{"role": "user", "content": "Weather in Paris?"}, call.to_dict(), result]
    by_items = ask(client, whole, tools=[WEATHER], tool_choice="none", **ALIKE)
    assert by_id.output_text == by_items.output_text != ""
    assert input_tokens(by_id) == input_tokens(by_items)


def test_a_member_of_a_namespace_is_called_beside_a_tool_of_the_platform(client: openai.OpenAI) -> None:
    """As Codex's command line sends its tools, calls and results."""
    group = {"type": "namespace", "name": "mcp__sky", "description": "About the sky.", "tools": [WEATHER]}
    tools: Any = [{"type": "web_search"}, group]
    choice: Any = {"type": "function", "namespace": "mcp__sky", "name": "get_weather"}
    raw = client.responses.with_raw_response.create(
        model=MODEL, input="Weather in Paris?", tools=tools, tool_choice=choice, max_output_tokens=200, temperature=0
    )
    assert raw.headers["x-allm-ignored-parameters"] == "tools[0].web_search"
    response = raw.parse()
    (call,) = response.output[:1]
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.namespace, call.name) == ("mcp__sky", "get_weather")
    assert [tool.type for tool in response.tools] == ["namespace"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": None}
    assert input_tokens(ask(client, [call.to_dict(), result], tools=tools, **ALIKE)) > 0


def test_a_call_is_streamed(stack: Stack, client: openai.OpenAI) -> None:
    asked = {"input": "Weather in Rome?", "tools": [WEATHER], "tool_choice": FORCED, "parallel_tool_calls": False}
    events = raw_events(stack, {**asked, "temperature": 0})
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2] == "output_item.added"
    assert set(kinds[3:-3]) == {"function_call_arguments.delta"}
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    with client.responses.stream(model=MODEL, temperature=0, **asked) as stream:  # type: ignore[call-overload]
        final = stream.get_final_response()
    assert json.loads(final.output[0].arguments)["city"] in ("Paris", "Rome")


def test_an_image_is_refused_with_its_place_by_a_model_that_does_not_see(client: openai.OpenAI) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    content = [{"type": "input_text", "text": "What is this?"}, image]
    with pytest.raises(openai.BadRequestError, match="does not see pictures") as raised:
        ask(client, [{"role": "user", "content": content}])
    assert raised.value.param == "input[0].content[1]"


def test_turns(client: openai.OpenAI) -> None:
    turns: list[Any] = [{"role": "user", "content": "My name is Ann."}]
    first = ask(client, turns, max_output_tokens=8)
    turns += [item.to_dict() for item in first.output] + [{"role": "user", "content": "What is my name?"}]
    by_items = ask(client, turns, **ALIKE)
    by_id = ask(client, "What is my name?", previous_response_id=first.id, **ALIKE)
    assert by_id.output_text == by_items.output_text != ""
    assert input_tokens(by_id) == input_tokens(by_items)
    assert by_id.previous_response_id == first.id
    again = ask(client, "And what is yours?", previous_response_id=first.id, max_output_tokens=1)
    assert again.usage
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_the_phases_of_an_assistants_messages_are_accepted(client: openai.OpenAI) -> None:
    said = [("commentary", "I look it up."), ("final_answer", "It is Paris.")]
    turns = [{"role": "assistant", "content": text, "phase": phase} for phase, text in said]
    given = [{"role": "user", "content": QUESTION}, *turns, {"role": "user", "content": "Sure?"}]
    response = ask(client, given, max_output_tokens=1)
    assert response.status in ("completed", "incomplete")


# --- beyond the compliance checks


def test_an_answer_follows_a_schema(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(
        model=MODEL, input="Berlin?", text_format=City, max_output_tokens=400, temperature=0
    )
    assert parsed.status == "completed"
    assert isinstance(parsed.output_parsed, City)
    form: Any = {
        "type": "json_schema",
        "name": "c",
        "schema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}},
    }
    form["schema"] |= {"required": ["a"], "additionalProperties": False}
    response = ask(client, "One or two?", text={"format": form}, max_output_tokens=200)
    assert json.loads(response.output_text)["a"] in (1, 2)
    assert response.text
    assert response.text.to_dict()["format"] == {**form, "strict": None}


def test_one_that_is_cut_off(client: openai.OpenAI, stack: Stack) -> None:
    response = ask(client, max_output_tokens=2, extra_body={"ignore_eos": True})
    assert response.status == "incomplete"
    assert response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"
    events = raw_events(stack, {"input": QUESTION, "max_output_tokens": 2, "ignore_eos": True})
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_logprobs(client: openai.OpenAI) -> None:
    response = ask(client, include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=4)
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    (content,) = message.content
    assert content.type == "output_text"
    assert content.logprobs
    assert "".join(token.token for token in content.logprobs) == content.text
    assert all(len(token.top_logprobs) == 2 for token in content.logprobs)


def test_stored_responses_can_be_read_and_deleted(client: openai.OpenAI) -> None:
    response = ask(client, metadata={"a": "b"}, max_output_tokens=2)
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    kept = client.responses.retrieve(response.id, include=["message.output_text.logprobs"])
    assert kept.metadata == {"a": "b"}
    client.responses.delete(response.id)
    for act in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match=response.id) as raised:
            act(response.id)
        assert (raised.value.type, raised.value.code) == ("invalid_request_error", "response_not_found")


def test_input_items_come_in_pages(client: openai.OpenAI) -> None:
    given = [{"role": "user", "content": f"{number}"} for number in range(5)]
    response = ask(client, given, max_output_tokens=1)
    pages = client.responses.input_items.list(response.id, limit=2, order="asc")
    assert [item.content[0].text for item in pages] == ["0", "1", "2", "3", "4"]  # type: ignore[union-attr]
    newest = client.responses.input_items.list(response.id, limit=2)
    assert newest.has_more
    assert newest.data[0].content[0].text == "4"  # type: ignore[union-attr]


def test_counting(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input=QUESTION, instructions="Be brief.")
    response = ask(client, instructions="Be brief.", max_output_tokens=1)
    assert response.usage
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", response.usage.input_tokens)


def test_one_in_the_background(client: openai.OpenAI) -> None:
    queued = client.responses.create(model=MODEL, input=QUESTION, background=True, temperature=0, max_output_tokens=32)
    assert queued.status == "queued"
    response = ended(client, queued)
    assert "Paris" in response.output_text
    Response.model_validate(response.to_dict(), strict=True)


def test_cancelling(client: openai.OpenAI) -> None:
    queued = client.responses.create(
        model=MODEL, input=QUESTION, background=True, max_output_tokens=4000, extra_body={"ignore_eos": True}
    )
    assert client.responses.cancel(queued.id).status == "cancelled"
    assert client.responses.cancel(queued.id).status == "cancelled"
    assert client.responses.retrieve(queued.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(ask(client, max_output_tokens=1).id)


def test_a_stream_that_broke_off_is_taken_up_again(client: openai.OpenAI, stack: Stack) -> None:
    asked = {"input": QUESTION, "background": True, "temperature": 0, "max_output_tokens": 32}
    stream = client.responses.create(model=MODEL, stream=True, **asked)  # type: ignore[call-overload]
    seen = []
    for event in stream:
        seen.append(event)
        if event.type == "response.in_progress":
            break
    stream.close()
    response_id = seen[0].response.id
    after = seen[-1].sequence_number
    rest = raw_events(stack, None, f"/responses/{response_id}?stream=true&starting_after={after}")
    numbers = [event.sequence_number for event in seen] + [event["sequence_number"] for event in rest]
    assert numbers == list(range(len(numbers)))
    assert rest[-1]["type"] == "response.completed"
    with client.responses.stream(response_id=response_id) as again:
        assert "Paris" in again.get_final_response().output_text
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.retrieve(ask(client, max_output_tokens=1).id, stream=True)
    assert raised.value.param == "stream"


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"model": "no/such-model"}, "model"),
        ({"input": []}, "input"),
        ({"temperature": 5}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"input": "word " * 20_000}, "input"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"tools": [{"type": "function", "name": "no spaces"}]}, "tools[0]"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_parameter_is_named(client: openai.OpenAI, parameters: dict[str, Any], param: str, stream: bool) -> None:
    body = {"model": MODEL, "input": QUESTION, "stream": stream, **parameters}
    with pytest.raises(openai.APIStatusError) as raised:
        client.post("/responses", body=body, cast_to=object)
    assert raised.value.status_code in (400, 404)
    assert (raised.value.type, raised.value.param) == ("invalid_request_error", param)
    assert "'messages'" not in raised.value.message


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("?include[]=thoughts", "include"),
        ("?include=thoughts", "include"),
        ("?starting_after=3", "starting_after"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=msg_none", "after"),
    ],
)
def test_a_bad_query_is_named(client: openai.OpenAI, path: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.get(f"/responses/{ask(client, max_output_tokens=1).id}{path}", cast_to=object)
    assert raised.value.param == param


def test_the_path_decides_which_response(client: openai.OpenAI) -> None:
    one, two = ask(client, max_output_tokens=1), ask(client, max_output_tokens=1)
    found: Any = client.get(f"/responses/{one.id}?response_id={two.id}", cast_to=object)
    assert found["id"] == one.id


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"{}", b'{"model": 1}', b"\xff\xfe"])
@pytest.mark.parametrize("path", ["", "/input_tokens"])
def test_bodies_that_are_no_responses_request(stack: Stack, path: str, body: bytes) -> None:
    request = urllib.request.Request(f"{stack.base_url}/responses{path}", body, method="POST")
    with pytest.raises(urllib.error.HTTPError) as raised, urllib.request.urlopen(request, timeout=30):
        pass
    with raised.value as reply:
        assert reply.code == 400
        error = json.loads(reply.read())["error"]
    assert error["type"] == "invalid_request_error"
