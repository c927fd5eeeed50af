"""The typed API on two replicas: responses created on one, read, continued, cancelled on the other; their owners."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from allm.text.v1 import chat_pb2, response_pb2, response_service_pb2

from tests.operator_side import Operator
from tests.stack import Stack
from tests.text.response_replica import (
    RUNNING,
    Replica,
    asked,
    can_answer,
    long,
    reason_of,
    replica,
    text_of,
    wait_until,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def two(two_replicas: Operator) -> Stack:
    return two_replicas.stack


@pytest.fixture
def first(two: Stack) -> Iterator[Replica]:
    yield from replica(two, 1)


@pytest.fixture
def second(two: Stack) -> Iterator[Replica]:
    yield from replica(two, 2)


def test_another_replica_reads_and_continues_a_response(first: Replica, second: Replica) -> None:
    asking = {"metadata": {"a": "b"}, "instructions": "Be brief.", "prompt_cache_key": "session"}
    made = first.create("What is the capital of France?", **asking)
    assert "Paris" in text_of(made)
    assert made.status == response_pb2.RESPONSE_STATUS_COMPLETED
    assert second.get(made.id) == made
    assert made.settings.prompt_cache_key == "session"
    assert (made.settings.metadata["a"], made.settings.store, made.settings.sampling.max_tokens) == ("b", True, 12)
    there = second.create("And of Spain?", previous_response_id=made.id)
    here = first.create("And of Spain?", previous_response_id=made.id)
    assert text_of(there) == text_of(here) != ""
    items = second.call("ListInputItems", response_service_pb2.ListInputItemsRequest(id=made.id))
    assert [item.message.content[0].text for item in items.items] == ["What is the capital of France?"]
    second.call("DeleteResponse", response_service_pb2.DeleteResponseRequest(id=made.id))
    with pytest.raises(grpc.RpcError) as caught:
        first.get(made.id)
    assert reason_of(caught.value) == (grpc.StatusCode.NOT_FOUND, "INVALID_REQUEST", "id")


def test_another_replica_cancels_a_response(first: Replica, second: Replica) -> None:
    queued = long(first)
    assert queued.status == response_pb2.RESPONSE_STATUS_QUEUED
    wait_until(lambda: second.get(queued.id).status == response_pb2.RESPONSE_STATUS_IN_PROGRESS)
    assert second.cancel(queued.id).status == response_pb2.RESPONSE_STATUS_CANCELLED
    assert first.get(queued.id).status == response_pb2.RESPONSE_STATUS_CANCELLED
    # Its background slot is free again: as many responses as there are slots run after it.
    for _ in range(3):
        response_id = first.create("Hi", {"max_tokens": 2}, background=True).id
        wait_until(lambda response_id=response_id: second.get(response_id).status not in RUNNING)


def test_it_survives_its_caller(two: Stack, second: Replica) -> None:
    folder = Path(two.note["folder"])
    with grpc.insecure_channel(f"unix:{folder / 'text-1.sock'}") as channel:
        queued = Replica(channel).create("What is the capital of France?", background=True)
    response = wait_until(lambda: (found := second.get(queued.id)).status not in RUNNING and found)
    assert "Paris" in text_of(response)


def test_a_response_belongs_to_its_caller(first: Replica, second: Replica) -> None:
    made = first.create("Hi", {"max_tokens": 2})
    bob = second.as_client("bob")
    requests = {
        "GetResponse": response_service_pb2.GetResponseRequest(id=made.id),
        "DeleteResponse": response_service_pb2.DeleteResponseRequest(id=made.id),
        "CancelResponse": response_service_pb2.CancelResponseRequest(id=made.id),
        "ListInputItems": response_service_pb2.ListInputItemsRequest(id=made.id),
        "CreateResponse": response_service_pb2.CreateResponseRequest(**asked("x", previous_response_id=made.id)),
        "CountInputTokens": response_service_pb2.CountInputTokensRequest(**asked("x", previous_response_id=made.id)),
    }
    for method, request in requests.items():
        with pytest.raises(grpc.RpcError) as caught:
            bob.call(method, request)
        assert reason_of(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "INVALID_REQUEST"), method
    assert second.get(made.id) == made


def test_a_typed_stream(first: Replica) -> None:
    request = response_service_pb2.StreamResponseRequest(**asked("What is the capital of France?", top_logprobs=1))
    events = list(first.call("StreamResponse", request))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[:4] == ["created", "in_progress", "item_added", "part_added"]
    assert kinds[-4:] == ["text_done", "part_done", "item_done", "completed"]
    text = "".join(event.text_delta.text for event in events)
    final = events[-1].completed
    assert text == events[-4].text_done.text == events[-3].part_done.text == text_of(final)
    assert sum(len(event.text_delta.logprobs) for event in events) == len(final.output[0].message.logprobs) > 0
    assert not events[2].item_added.item.message.content
    assert first.get(final.id) == final


def test_a_typed_call(first: Replica) -> None:
    schema = '{"type":"object","properties":{"a":{"enum":[1,2]}},"required":["a"],"additionalProperties":false}'
    tools = [chat_pb2.Tool(name="f", parameters_json=schema, strict=True)]
    choice = chat_pb2.ToolChoice(mode=chat_pb2.ToolChoice.MODE_REQUIRED)
    settings = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    made = first.create("Call f.", {"max_tokens": 64}, **settings)
    (item,) = made.output
    assert item.function_call.name == "f"
    assert item.function_call.arguments_json in ('{"a": 1}', '{"a": 2}', '{"a":1}', '{"a":2}')
    answer = response_pb2.FunctionCallOutputItem(call_id=item.function_call.call_id, output="done")
    request = asked("", previous_response_id=made.id)
    request["input"] = [response_pb2.Item(function_call_output=answer)]
    assert first.call("CreateResponse", response_service_pb2.CreateResponseRequest(**request)).response.output


def test_counting_tokens(first: Replica) -> None:
    request = asked("What is the capital of France?")
    counted = first.call("CountInputTokens", response_service_pb2.CountInputTokensRequest(**request))
    assert counted.input_tokens == first.create("What is the capital of France?").usage.prompt_tokens > 0


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": ""}, "model"),
        ({"input": []}, "input"),
        ({"input": [response_pb2.Item()]}, "input[0]"),
        ({"input": [response_pb2.Item(message=response_pb2.MessageItem())]}, "input[0].message.role"),
        ({"settings": response_pb2.ResponseSettings(metadata={"k" * 65: ""})}, "settings.metadata"),
        ({"settings": response_pb2.ResponseSettings(reasoning_effort="much")}, "settings.reasoning_effort"),
        ({"settings": response_pb2.ResponseSettings(prompt_cache_key="k" * 513)}, "settings.prompt_cache_key"),
        ({"settings": response_pb2.ResponseSettings(previous_response_id="no")}, "settings.previous_response_id"),
        ({"settings": response_pb2.ResponseSettings(store=False, background=True)}, "settings.background"),
        ({"settings": response_pb2.ResponseSettings(tools=[chat_pb2.Tool(name="")])}, "settings.tools[0]"),
    ],
)
def test_a_bad_field_is_named(first: Replica, change: dict[str, Any], param: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        first.call("CreateResponse", response_service_pb2.CreateResponseRequest(**{**asked("Hi"), **change}))
    assert reason_of(caught.value)[1:] == ("INVALID_REQUEST", param)


def test_response_of_a_killed_replica_has_failed(two: Stack, first: Replica, second: Replica) -> None:
    queued, killed = long(second), two.note["children"]["text-2"]
    os.kill(killed, signal.SIGKILL)
    response = wait_until(lambda: (found := first.get(queued.id)).status not in RUNNING and found)
    assert response.status == response_pb2.RESPONSE_STATUS_FAILED
    assert response.failure.code == "INTERNAL"
    wait_until(lambda: two.note["children"].get("text-2") not in (None, killed))
    wait_until(lambda: can_answer(second))
