"""OpenAI's response objects and events: every field of the official SDK's types is present and valid."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response as OfficialResponse
from openai.types.responses import ResponseItem, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from services.text.api.responses.openai import EventWriter, item_object, items_object, response_object
from services.text.conversation import (
    CallArguments,
    CallStarted,
    Finished,
    OutputFormat,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolChoice,
    Usage,
)
from services.text.engine.messages import TokenLogprob
from services.text.engine.sampling import SamplingParams
from services.text.responses.response import (
    Event,
    Failure,
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    MessageItem,
    OutputName,
    Part,
    Progress,
    ReasoningItem,
    Response,
    ResponseSettings,
)
from services.text.responses.run import Output
from tests.response_fields import REQUIRED

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)
TOKEN = TokenLogprob(b"\xff", -0.5, [(b"a", -1.5)])

ITEMS: tuple[Item, ...] = (
    ReasoningItem(id="rs_1", text="hm", summary=("s",)),
    ReasoningItem(id="rs_2", text=""),
    MessageItem(id="msg_1", role="assistant", content=(Part(text="hi", logprobs=(TOKEN,)),), status="incomplete"),
    MessageItem(id="msg_2", role="assistant", content=(Part(text="no", refusal=True),)),
    FunctionCallItem(id="fc_1", call_id="call_1", name="f", arguments="{}"),
)
GIVEN: tuple[Item, ...] = (
    *ITEMS,
    MessageItem(id="msg_3", role="user", content=(Part(text="a"), Part(text="b"))),
    MessageItem(id="msg_4", role="developer", content=()),
    FunctionOutputItem(id="fco_1", call_id="call_1", output="ok"),
)


def response(**changes: Any) -> Response:
    plain = Response(id="resp_1", model="m", created=1_700_000_000.7, settings=ResponseSettings(store=True))
    return msgspec.structs.replace(plain, **changes)


FULL = response(
    status="completed",
    completed=1_700_000_001.5,
    output=ITEMS,
    usage=Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3, reasoning_tokens=1),
    settings=ResponseSettings(
        store=True,
        instructions="be brief",
        sampling=SamplingParams(temperature=0.5, max_tokens=9),
        tools=(Tool(name="f", description="d", parameters={"type": "object"}, strict=True), Tool(name="g")),
        tool_choice=ToolChoice(mode="required", names=frozenset({"f"})),
        output=OutputFormat(kind="json_schema", schema={"type": "object"}),
        output_name=OutputName(name="n", description="d", strict=True),
        logprobs=2,
        reasoning_effort="low",
        summary="auto",
        metadata={"a": "b"},
        user="u",
        max_tool_calls=3,
        prompt_cache_key="k",
        safety_identifier="s",
        previous_response_id="resp_0",
        shorten=True,
    ),
)


@pytest.mark.parametrize(
    "made",
    [
        FULL,
        response(),
        response(
            status="queued", settings=ResponseSettings(store=True, background=True, tool_choice=ToolChoice(mode="none"))
        ),
        response(status="cancelled"),
        response(status="incomplete", incomplete="max_output_tokens"),
        response(status="failed", failure=Failure(code="TIMEOUT", message="late")),
        response(status="failed", failure=Failure(code="INVALID_REQUEST", message="no")),
        response(status="failed", failure=Failure(code="OVERLOADED", message="full")),
        response(settings=ResponseSettings(output=OutputFormat(kind="json_object"))),
        response(
            settings=ResponseSettings(tool_choice=ToolChoice(names=frozenset({"f", "g"})), tools=(Tool(name="f"),))
        ),
    ],
    ids=lambda made: made.status,
)
def test_a_response_is_what_the_official_types_say_with_every_field(made: Response) -> None:
    found = json.loads(json.dumps(response_object(made)))
    assert not REQUIRED - set(found)
    assert isinstance(found["created_at"], int)
    official = OfficialResponse.model_validate(found, strict=True)
    assert official.status == made.status
    # No item fell back to a plain dict instead of its type of the union.
    assert all(type(item).__name__ != "dict" for item in official.output)


def test_request_parameters_are_returned() -> None:
    found = response_object(FULL)
    assert found["tool_choice"] == {"type": "function", "name": "f"}
    schema = {"type": "json_schema", "name": "n", "description": "d", "strict": True, "schema": {"type": "object"}}
    assert found["text"] == {"format": schema, "verbosity": "medium"}
    assert found["reasoning"] == {"effort": "low", "summary": "auto"}
    assert found["tools"][1] == {
        "type": "function",
        "name": "g",
        "description": None,
        "parameters": None,
        "strict": False,
    }
    assert (found["max_output_tokens"], found["temperature"], found["top_logprobs"]) == (9, 0.5, 2)
    assert (found["truncation"], found["previous_response_id"], found["metadata"]) == ("auto", "resp_0", {"a": "b"})
    assert found["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 13,
    }


@pytest.mark.parametrize("item", GIVEN, ids=lambda item: item.id)
def test_an_item_is_what_the_official_types_say(item: Item) -> None:
    found = item_object(item)
    assert ITEM.validate_python(found, strict=True).id == item.id


def test_a_page_of_items() -> None:
    page = items_object(GIVEN, has_more=True)
    assert ResponseItemList.model_validate(page, strict=True).last_id == "fco_1"
    assert (page["first_id"], page["has_more"], page["object"]) == ("rs_1", True, "list")
    ResponseItemList.model_validate(items_object((), has_more=False), strict=True)


def test_a_token_that_is_no_character_keeps_its_bytes() -> None:
    (logprob,) = item_object(ITEMS[2])["content"][0]["logprobs"]
    assert logprob == {
        "token": "\ufffd",
        "bytes": [255],
        "logprob": -0.5,
        "top_logprobs": [{"token": "a", "bytes": [97], "logprob": -1.5}],
    }


def streamed(*answer_events: Any) -> list[dict[str, Any]]:
    """Returns the events of a whole stream as a client reads them."""
    output = Output()
    events: list[Event] = [Progress("created", response()), Progress("in_progress", response())]
    events += [event for one in answer_events for event in output.take(one)]
    events.append(Progress("completed", response(status="completed", output=tuple(output.items))))
    writer = EventWriter()
    found = []
    for event in events:
        name, data, *rest = writer.event(event).decode().split("\n")
        assert rest == ["", ""]
        content = json.loads(data.removeprefix("data: "))
        assert name == f"event: {content['type']}"
        EVENT.validate_python(content, strict=True)
        found.append(content)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_the_order_of_a_text() -> None:
    events = streamed(TextDelta("Hel", (TOKEN,)), TextDelta("lo"), Finished("stop"))
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[2]["item"]["content"] == []
    assert events[3]["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert (events[4]["delta"], len(events[4]["logprobs"]), events[5]["logprobs"]) == ("Hel", 1, [])
    assert events[6]["text"] == events[7]["part"]["text"] == "Hello"
    assert events[8]["item"] == events[9]["response"]["output"][0]
    assert {event["item_id"] for event in events[3:8]} == {events[2]["item"]["id"]}


def test_the_order_of_a_call_after_a_thought() -> None:
    call = (CallStarted(0, "f", "call_1"), CallArguments(0, '{"a":'), CallArguments(0, "1}"))
    events = streamed(ReasoningDelta("hm"), *call, Finished("tool_calls"))
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[3]["part"] == {"type": "reasoning_text", "text": ""}
    added = events[8]["item"]
    assert (added["name"], added["call_id"], added["arguments"]) == ("f", "call_1", "")
    assert added["status"] == "in_progress"
    assert events[11]["arguments"] == '{"a":1}'
    assert [event["output_index"] for event in events[2:13]] == [0] * 6 + [1] * 5


def test_events_that_have_numbers_keep_them() -> None:
    writer = EventWriter()
    assert b'"sequence_number":7' in writer.event(Progress("queued", response()), 7)
