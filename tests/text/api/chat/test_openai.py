"""OpenAI's Chat Completions: the response objects, validated against the SDK's pydantic models."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from services.text.api.chat.openai import ChunkWriter, completion_object, usage_object
from services.text.conversation import CallArguments, CallStarted, Finished, ReasoningDelta, TextDelta, ToolCall, Usage
from services.text.engine.messages import TokenLogprob
from services.text.running_answer import AnswerContent

HEAD = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "m"}
USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3, reasoning_tokens=2)
TOKEN = TokenLogprob(b"Hi", -0.25, [(b"Hi", -0.25), (b"\xf0\x9f", -1.5)])


def whole(*said: AnswerContent, logprobs: bool = False) -> dict[str, Any]:
    return completion_object(HEAD, said, USAGE, logprobs=logprobs)


def writer(*, include_usage: bool = False, logprobs: bool = False) -> ChunkWriter:
    return ChunkWriter(HEAD, include_usage=include_usage, logprobs=logprobs)


def exactly(model: type[BaseModel], value: dict[str, Any], absent: set[str]) -> None:
    """Checks that `value` validates and has exactly the fields of the SDK's model, without those in `absent`."""
    parsed = model.model_validate(value, strict=True)
    assert set(value) == set(model.model_fields) - absent
    assert not parsed.model_extra


def test_a_whole_completion_has_exactly_openais_fields() -> None:
    value = whole(AnswerContent(text="Hi!", finish="stop"))
    exactly(ChatCompletion, value, {"metadata", "moderation"})
    (choice,) = value["choices"]
    fields = ChatCompletion.model_fields["choices"].annotation.__args__[0].model_fields
    assert set(choice) == set(fields)
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    message = fields["message"].annotation
    exactly(message, choice["message"], {"audio", "function_call", "tool_calls"})
    assert choice["message"] == {"role": "assistant", "content": "Hi!", "refusal": None, "annotations": []}
    assert (value["id"], value["created"], value["model"]) == ("chatcmpl-1", 1_700_000_000, "m")
    assert (value["object"], value["system_fingerprint"]) == ("chat.completion", None)


def test_usage_counts_right_and_wrong_guesses() -> None:
    details = usage_object(dataclasses.replace(USAGE, accepted_tokens=3, rejected_tokens=2))[
        "completion_tokens_details"
    ]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (3, 2)


def test_usage_adds_up_and_includes_cached_tokens() -> None:
    value = usage_object(USAGE)
    assert (value["prompt_tokens"], value["completion_tokens"], value["total_tokens"]) == (10, 3, 13)
    assert value["prompt_tokens_details"]["cached_tokens"] == 4
    assert value["completion_tokens_details"]["reasoning_tokens"] == 2
    parsed = ChatCompletion.model_validate(whole(AnswerContent(finish="length")), strict=True).usage
    assert parsed.total_tokens == 13
    for part in (parsed, parsed.prompt_tokens_details, parsed.completion_tokens_details):
        assert not part.model_extra


@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_have_exactly_openais_fields(include_usage: bool) -> None:
    chunks_of = writer(include_usage=include_usage)
    events = [TextDelta("Hi"), TextDelta("!"), Finished("stop")]
    chunks = [chunks_of.role(0), *(chunks_of.event(0, event) for event in events)]
    absent = {"moderation", "obfuscation"} | (set() if include_usage else {"usage"})
    for chunk in chunks:
        exactly(ChatCompletionChunk, chunk, absent)
        assert chunk["object"] == "chat.completion.chunk"
        assert (chunk["id"], chunk["created"], chunk["model"]) == ("chatcmpl-1", 1_700_000_000, "m")
        (choice,) = chunk["choices"]
        assert set(choice) == {"index", "delta", "logprobs", "finish_reason"}
        assert choice["logprobs"] is None
        if include_usage:
            assert chunk["usage"] is None, "OpenAI prints it in every chunk, null until the last"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hi"},
        {"content": "!"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]


def test_the_usage_chunk_has_no_choices() -> None:
    chunk = writer(include_usage=True).usage(USAGE)
    exactly(ChatCompletionChunk, chunk, {"moderation", "obfuscation"})
    assert chunk["choices"] == []
    assert chunk["usage"] == usage_object(USAGE)


def test_chunks_of_a_stream_do_not_share_what_can_change() -> None:
    chunks = writer()
    first, second = chunks.event(0, TextDelta("a")), chunks.event(0, TextDelta("b"))
    first["choices"][0]["delta"]["content"] = "changed"
    assert second["choices"][0]["delta"] == {"content": "b"}
    assert HEAD == {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "m"}


def test_calls_and_thoughts_of_a_whole_completion() -> None:
    said = AnswerContent(reasoning="hm", calls=[ToolCall(id="call_1", name="f", arguments="{}")], finish="tool_calls")
    (choice,) = whole(said)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]
    parsed = ChatCompletion.model_validate(whole(said), strict=True).choices[0].message
    assert parsed.tool_calls[0].function.name == "f"


def test_choices_are_numbered() -> None:
    value = whole(AnswerContent(text="a", finish="stop"), AnswerContent(text="b", finish="length"))
    assert [(choice["index"], choice["message"]["content"]) for choice in value["choices"]] == [(0, "a"), (1, "b")]


def test_logprobs_are_openais() -> None:
    (choice,) = whole(AnswerContent(text="Hi", logprobs=[TOKEN], finish="stop"), logprobs=True)["choices"]
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "Hi",
                "logprob": -0.25,
                "bytes": [72, 105],
                "top_logprobs": [
                    {"token": "Hi", "logprob": -0.25, "bytes": [72, 105]},
                    {"token": "\ufffd", "logprob": -1.5, "bytes": [0xF0, 0x9F]},
                ],
            }
        ],
        "refusal": None,
    }
    ChatCompletion.model_validate(
        whole(AnswerContent(text="Hi", logprobs=[TOKEN], finish="stop"), logprobs=True), strict=True
    )
    chunk = writer(logprobs=True).event(0, TextDelta("Hi", (TOKEN,)))
    assert chunk["choices"][0]["logprobs"] == choice["logprobs"]
    ChatCompletionChunk.model_validate(chunk, strict=True)


def test_chunks_of_calls_and_thoughts() -> None:
    chunks = writer()
    events = [ReasoningDelta("hm"), CallStarted(0, "f", "call_1"), CallArguments(0, '{"a"'), CallArguments(0, ": 1}")]
    values = [chunks.event(1, event) for event in events]
    for value in values:
        ChatCompletionChunk.model_validate(value, strict=True)
        assert value["choices"][0]["index"] == 1
    assert [value["choices"][0]["delta"] for value in values] == [
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]
    assert chunks.event(1, Finished("tool_calls"))["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_of_a_deprecated_function() -> None:
    call = ToolCall(id="call_1", name="f", arguments='{"a": 1}')
    value = completion_object(
        HEAD, [AnswerContent(calls=[call], finish="tool_calls")], USAGE, logprobs=False, legacy=True
    )
    choice = ChatCompletion.model_validate(value, strict=True).choices[0]
    assert choice.message.function_call
    assert (choice.message.function_call.name, choice.message.function_call.arguments) == ("f", '{"a": 1}')
    assert (choice.message.tool_calls, choice.message.content, choice.finish_reason) == (None, None, "function_call")
    chunks = ChunkWriter(HEAD, include_usage=False, logprobs=False, legacy=True)
    events = [CallStarted(0, "f", "call_1"), CallArguments(0, '{"a": 1}'), Finished("tool_calls")]
    values = [ChatCompletionChunk.model_validate(chunks.event(0, event), strict=True) for event in events]
    deltas = [value.choices[0].delta.model_dump(exclude_unset=True) for value in values]
    assert deltas == [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a": 1}'}},
        {},
    ]
    assert values[-1].choices[0].finish_reason == "function_call"


def test_deltas_of_an_obfuscated_stream_are_padded() -> None:
    chunks = ChunkWriter(HEAD, include_usage=False, logprobs=False, obfuscated=True)
    for event in (TextDelta("Hi"), ReasoningDelta("hm"), CallArguments(0, "{}")):
        assert ChatCompletionChunk.model_validate(chunks.event(0, event), strict=True).model_extra == {}
        assert chunks.event(0, event)["obfuscation"]
    assert "obfuscation" not in chunks.event(0, Finished("stop"))
