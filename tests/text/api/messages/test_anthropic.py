"""Anthropic's messages and stream events, built from the core's events: a stream adds up to the whole."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from anthropic.types import Message
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from pydantic import TypeAdapter

from services.text.api.messages.anthropic import SIGNATURE, MessageWriter
from services.text.conversation import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Finished,
    ReasoningDelta,
    TextDelta,
    Usage,
)

USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3, reasoning_tokens=1)
TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def plain(value: Any) -> Any:
    """Returns a value as a client reads it. The SDK's types accept it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def streamed(*events: AnswerEvent, **options: Any) -> tuple[MessageWriter, list[Any]]:
    writer = MessageWriter("msg_1", "m", options.pop("max_tokens", 3), **options)
    found = [plain(each) for event in events for each in writer.events(event, USAGE)]
    for each in found:
        if each["type"] != "ping":
            EVENT.validate_python(each)
    return writer, found


def added_up(events: list[Any]) -> dict[str, Any]:
    """Builds the message from its stream, as the reference describes it."""
    message: dict[str, Any] = {}
    parts: dict[int, str] = {}
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            parts[event["index"]] = ""
        elif kind == "content_block_delta":
            delta, block = event["delta"], message["content"][event["index"]]
            if delta["type"] == "signature_delta":
                block["signature"] = delta["signature"]
            else:
                parts[event["index"]] += delta[TEXTS[delta["type"]]]
        elif kind == "content_block_stop":
            block, text = message["content"][event["index"]], parts.pop(event["index"])
            if block["type"] == "tool_use":
                block["input"] = json.loads(text or "{}")
            else:
                block[block["type"]] += text
        elif kind == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    assert not parts, "every block ends"
    return message


def test_thoughts_text_and_parallel_calls() -> None:
    writer, events = streamed(
        *(ReasoningDelta("I "), ReasoningDelta("think"), TextDelta("\n"), TextDelta("Let me "), TextDelta("look.")),
        *(CallStarted(0, "f", "call_1"), CallArguments(0, '{"a":'), CallArguments(0, " 1}"), TextDelta("\n")),
        *(CallStarted(1, "g", "call_2"), CallArguments(1, "{}"), Finished("tool_calls")),
    )
    whole = plain(writer.whole(USAGE))
    assert added_up(events) == whole
    assert Message.model_validate(whole).stop_reason == "tool_use"
    assert whole["content"] == [
        {"type": "thinking", "thinking": "I think", "signature": SIGNATURE},
        {"type": "text", "text": "\nLet me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
    ]
    assert whole["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
        "output_tokens_details": {"thinking_tokens": 1},
        "service_tier": "standard",
    }


def test_the_order_of_events() -> None:
    _, events = streamed(TextDelta("a"), TextDelta("b"), Finished("stop"))
    delta = "content_block_delta"
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", "ping", delta, delta, "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert events[0]["message"]["stop_reason"] is None


def test_omitted_thoughts_leave_their_block() -> None:
    writer, events = streamed(ReasoningDelta("secret"), TextDelta("a"), Finished("stop"), thoughts_shown=False)
    assert added_up(events) == plain(writer.whole(USAGE))
    assert "secret" not in json.dumps(events)
    assert plain(writer.whole(USAGE))["content"][0] == {"type": "thinking", "thinking": "", "signature": SIGNATURE}


@pytest.mark.parametrize(
    ("finished", "most", "reason", "sequence"),
    [
        (Finished("stop"), 3, "end_turn", None),
        (Finished("stop", "END"), 3, "stop_sequence", "END"),
        (Finished("tool_calls"), 3, "tool_use", None),
        (Finished("length"), 3, "max_tokens", None),
        (Finished("length"), 4, "model_context_window_exceeded", None),
    ],
    ids=["end", "stop", "call", "most", "context"],
)
def test_reasons(finished: Finished, most: int, reason: str, sequence: str | None) -> None:
    writer, events = streamed(TextDelta("a"), finished, max_tokens=most)
    assert added_up(events) == plain(writer.whole(USAGE))
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_an_empty_answer_is_an_empty_text() -> None:
    writer, events = streamed(Finished("stop"))
    assert added_up(events) == plain(writer.whole(USAGE))
    assert plain(writer.whole(USAGE))["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", '"\\ud800"', "", "[" * 5000])
def test_arguments_that_are_no_object_are_an_empty_input(arguments: str) -> None:
    writer, _ = streamed(CallStarted(0, "f", "call_1"), CallArguments(0, arguments), Finished("length"))
    assert plain(writer.whole(USAGE))["content"][0]["input"] == {}


def test_numbers_of_a_call_stay_exact() -> None:
    given = '{"id": 123456789012345678901234567890, "x": 1.10}'
    writer, _ = streamed(CallStarted(0, "f", "call_1"), CallArguments(0, given), Finished("tool_calls"))
    assert given.encode() in msgspec.json.encode(writer.whole(USAGE))
