"""OpenAI's Chat Completions: responses and chunks, built from the core's results.

Reference: https://platform.openai.com/docs/api-reference/chat. OpenAI has no field for reasoning; `reasoning_content`
is the name that other servers use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.rest.openai import sse
from services.text.conversation import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from services.text.engine.messages import TokenLogprob
from services.text.running_answer import AnswerContent


def usage_object(usage: Usage) -> dict[str, Any]:
    """Builds the `usage` object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.rejected_tokens,
        },
    }


def completion_object(
    head: dict[str, Any], answers: Sequence[AnswerContent], usage: Usage, *, logprobs: bool, legacy: bool = False
) -> dict[str, Any]:
    """Builds a `chat.completion`; `head` holds id, created and model. `legacy`: a call is a `function_call`."""
    return {
        "id": head["id"],
        "object": "chat.completion",
        "created": head["created"],
        "model": head["model"],
        "choices": [
            {
                "index": index,
                "message": _message(answer, legacy=legacy),
                "logprobs": _logprobs(answer.logprobs) if logprobs else None,
                "finish_reason": _reason(answer.finish, legacy=legacy),
            }
            for index, answer in enumerate(answers)
        ],
        "usage": usage_object(usage),
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _reason(reason: FinishReason | None, *, legacy: bool) -> str | None:
    return "function_call" if legacy and reason == "tool_calls" else reason


def _message(answer: AnswerContent, *, legacy: bool) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text or (None if answer.calls else ""),
        "refusal": None,
        "annotations": [],
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls and legacy:  # there is one at most
        message["function_call"] = {"name": answer.calls[0].name, "arguments": answer.calls[0].arguments}
    elif answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"content": token_objects(tokens), "refusal": None}


def token_objects(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Builds the objects with the log probabilities of tokens."""
    return [
        {**_token(token.piece, token.logprob), "top_logprobs": [_token(piece, logprob) for piece, logprob in token.top]}
        for token in tokens
    ]


def _token(piece: bytes, logprob: float) -> dict[str, Any]:
    """Includes the bytes because a token may be less than a character, which its text cannot show."""
    return {"token": piece.decode(errors="replace"), "logprob": logprob, "bytes": list(piece)}


class ChunkWriter:
    """Builds the `chat.completion.chunk`s of one stream."""

    def __init__(
        self,
        head: dict[str, Any],
        *,
        include_usage: bool,
        logprobs: bool,
        legacy: bool = False,
        obfuscated: bool = False,
    ) -> None:
        self._head = {
            "id": head["id"],
            "object": "chat.completion.chunk",
            "created": head["created"],
            "model": head["model"],
            "service_tier": "default",
            "system_fingerprint": None,
        }
        # With include_usage, every chunk of OpenAI's has the field; it is null in all but the last.
        self._tail: dict[str, Any] = {"usage": None} if include_usage else {}
        self._logprobs = logprobs
        self._legacy = legacy
        self._obfuscated = obfuscated

    def role(self, index: int) -> dict[str, Any]:
        """Builds the first chunk of a choice."""
        return self._chunk(index, {"role": "assistant", "content": "", "refusal": None})

    def event(self, index: int, event: AnswerEvent) -> dict[str, Any]:
        """Builds the chunk for an event of a choice."""
        if isinstance(event, Finished):
            return self._chunk(index, {}, finish=_reason(event.reason, legacy=self._legacy))
        chunk = self._delta(index, event)
        return sse.obfuscated(chunk) if self._obfuscated else chunk

    def _delta(self, index: int, event: AnswerEvent) -> dict[str, Any]:
        if isinstance(event, TextDelta):
            logprobs = _logprobs(event.logprobs) if self._logprobs and event.logprobs else None
            return self._chunk(index, {"content": event.text}, logprobs=logprobs)
        if isinstance(event, ReasoningDelta):
            return self._chunk(index, {"reasoning_content": event.text})
        if isinstance(event, CallStarted):
            function = {"name": event.name, "arguments": ""}
            if self._legacy:
                return self._chunk(index, {"function_call": function})
            call = {"index": event.index, "id": event.id, "type": "function", "function": function}
            return self._chunk(index, {"tool_calls": [call]})
        if isinstance(event, CallArguments):
            function = {"arguments": event.text}
            if self._legacy:
                return self._chunk(index, {"function_call": function})
            return self._chunk(index, {"tool_calls": [{"index": event.index, "function": function}]})
        raise AssertionError("an end is no delta")

    def usage(self, usage: Usage) -> dict[str, Any]:
        """Builds the final usage chunk, which has no choices; sent only if requested."""
        return {**self._head, "choices": [], "usage": usage_object(usage)}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head, "choices": [choice], **self._tail}
