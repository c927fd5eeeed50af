"""Ollama's answers: a stream adds up to the whole, and calls appear complete."""

from __future__ import annotations

from typing import Any

import msgspec
from ollama import ChatResponse, GenerateResponse

from services.text.api.ollama.ollama import AnswerWriter, reason_of
from services.text.conversation import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCall,
)
from services.text.engine.messages import TokenLogprob
from services.text.running_answer import AnswerContent

FIGURES = {"total_duration": 3, "eval_count": 2}
LOGPROB = TokenLogprob(b"a", -0.5, [(b"b", -1.0)])


def plain(value: Any) -> Any:
    """Returns a value as a client reads it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def streamed(*events: AnswerEvent, chat: bool = True) -> list[Any]:
    writer = AnswerWriter("m:latest", chat=chat)
    found = [plain(line) for event in events for line in writer.lines(event)]
    for line in found:
        assert (line.pop("model"), line.pop("done")) == ("m:latest", False)
        assert line.pop("created_at").endswith("Z")
    return found


def test_text_and_thoughts() -> None:
    assert streamed(ReasoningDelta("hm"), TextDelta("a"), Finished("stop")) == [
        {"message": {"role": "assistant", "content": "", "thinking": "hm"}},
        {"message": {"role": "assistant", "content": "a"}},
    ]
    assert streamed(ReasoningDelta("hm"), TextDelta("a"), chat=False) == [
        {"response": "", "thinking": "hm"},
        {"response": "a"},
    ]


def test_calls_are_complete_objects() -> None:
    events: list[AnswerEvent] = [
        *(CallStarted(0, "f", "c0"), CallArguments(0, '{"a"'), CallArguments(0, ":1}")),
        *(CallStarted(1, "g", "c1"), CallArguments(1, '{"cut'), Finished("length")),
    ]
    assert [line["message"]["tool_calls"] for line in streamed(*events)] == [
        [{"id": "c0", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}],
        [{"id": "c1", "function": {"index": 1, "name": "g", "arguments": {}}}],
    ]


def test_logprobs() -> None:
    (line,) = streamed(TextDelta("a", (LOGPROB,)), chat=False)
    top = {"token": "b", "logprob": -1.0, "bytes": [98]}
    assert line["logprobs"] == [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [top]}]
    assert GenerateResponse(**line).logprobs


def test_the_whole() -> None:
    call = ToolCall(id="c", name="f", arguments='{"a":1}')
    content = AnswerContent("text", "hm", [call], [LOGPROB], finish="tool_calls")
    whole = plain(AnswerWriter("m", chat=True).whole(content, FIGURES))
    response = ChatResponse(**whole)
    assert (response.done, response.done_reason, response.eval_count) == (True, "stop", 2)
    assert (response.message.content, response.message.thinking) == ("text", "hm")
    assert response.message.tool_calls
    assert response.message.tool_calls[0].function.arguments == {"a": 1}
    assert response.logprobs
    short = plain(AnswerWriter("m", chat=False).whole(AnswerContent("text", finish="length"), FIGURES))
    assert {"response": "text", "done": True, "done_reason": "length"}.items() <= short.items()
    assert "thinking" not in short


def test_reasons() -> None:
    reasons = [reason_of(AnswerContent(finish=finish)) for finish in ("stop", "tool_calls", "length")]
    assert reasons == ["stop", "stop", "length"]
