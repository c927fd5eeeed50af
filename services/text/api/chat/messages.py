"""Chat results as protobuf (allm.text.v1)."""

from __future__ import annotations

from collections.abc import Iterable

from allm.text.v1 import chat_pb2, chat_service_pb2
from google.protobuf import timestamp_pb2

from services.text.conversation import FinishReason, Usage
from services.text.engine.messages import TokenLogprob
from services.text.parsers.events import AnswerEvent, CallArguments, CallStarted, ReasoningDelta, TextDelta
from services.text.running_answer import AnswerContent

_FINISH: dict[FinishReason | None, chat_pb2.FinishReason.ValueType] = {
    None: chat_pb2.FINISH_REASON_UNSPECIFIED,
    "stop": chat_pb2.FINISH_REASON_STOP,
    "length": chat_pb2.FINISH_REASON_LENGTH,
    "tool_calls": chat_pb2.FINISH_REASON_TOOL_CALLS,
}


def choice_message(index: int, answer: AnswerContent) -> chat_pb2.ChatChoice:
    """Converts a complete answer."""
    message = chat_pb2.ChatMessage(
        role=chat_pb2.CHAT_ROLE_ASSISTANT,
        content=[chat_pb2.ContentPart(text=answer.text)] if answer.text else [],
        reasoning=answer.reasoning,
        tool_calls=[
            chat_pb2.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments) for call in answer.calls
        ],
    )
    return chat_pb2.ChatChoice(
        index=index, message=message, finish_reason=_FINISH[answer.finish], logprobs=logprob_messages(answer.logprobs)
    )


def event_message(index: int, event: AnswerEvent, usage: Usage | None) -> chat_service_pb2.StreamChatCompletionResponse:
    """Converts one event of a stream; `usage` is set for the event that ends the last choice."""
    response = chat_service_pb2.StreamChatCompletionResponse
    delta = chat_service_pb2.ChatDelta(index=index)
    if isinstance(event, TextDelta):
        delta.text = event.text
        delta.logprobs.extend(logprob_messages(event.logprobs))
    elif isinstance(event, ReasoningDelta):
        delta.reasoning = event.text
    elif isinstance(event, CallStarted):
        delta.tool_call.index, delta.tool_call.id, delta.tool_call.name = event.index, event.id, event.name
    elif isinstance(event, CallArguments):
        delta.tool_call.index, delta.tool_call.arguments_json = event.index, event.text
    else:
        total = usage_message(usage) if usage else None
        reason = _FINISH[event.reason]
        return response(finished=chat_service_pb2.ChatFinished(index=index, finish_reason=reason, usage=total))
    return response(delta=delta)


def usage_message(usage: Usage) -> chat_pb2.Usage:
    """Converts the token usage of a request."""
    return chat_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """Converts seconds since 1970."""
    return timestamp_pb2.Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))


def logprob_messages(tokens: Iterable[TokenLogprob]) -> list[chat_pb2.TokenLogprob]:
    """Converts the log probabilities of tokens."""
    return [
        chat_pb2.TokenLogprob(
            token=token.piece,
            logprob=token.logprob,
            top=[chat_pb2.TokenAlternative(token=piece, logprob=logprob) for piece, logprob in token.top],
        )
        for token in tokens
    ]
