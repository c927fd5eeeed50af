"""OpenAI's Responses: objects and stream events, built from the core's results.

Reference: https://platform.openai.com/docs/api-reference/responses. Objects have every field of the reference that this
server can fill; absent values are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.rest.openai import sse
from services.text.api.chat.openai import token_objects
from services.text.api.responses.openai_tools import choice_object, format_object, tool_object
from services.text.conversation import Usage
from services.text.responses.response import (
    Delta,
    DeltaDone,
    Event,
    FunctionOutputItem,
    Item,
    ItemAdded,
    ItemDone,
    MessageItem,
    Part,
    PartAdded,
    Progress,
    ReasoningItem,
    Response,
)

# Our error codes as OpenAI's codes, which are few.
_ERROR_CODES = {
    "INVALID_REQUEST": "invalid_prompt",
    "UNSUPPORTED": "invalid_prompt",
    "OVERLOADED": "rate_limit_exceeded",
}
_DELTAS = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "arguments": "response.function_call_arguments",
}


def response_object(response: Response) -> dict[str, Any]:
    """Builds a `response` object."""
    settings = response.settings
    failure = response.failure
    error = failure and {"code": _ERROR_CODES.get(failure.code, "server_error"), "message": failure.message}
    return {
        "id": response.id,
        "object": "response",
        "created_at": int(response.created),
        "completed_at": None if response.completed is None else int(response.completed),
        "status": response.status,
        "background": settings.background,
        "error": error,
        "incomplete_details": {"reason": response.incomplete} if response.incomplete else None,
        "instructions": settings.instructions,
        "max_output_tokens": settings.sampling.max_tokens,
        "max_tool_calls": settings.max_tool_calls,
        "model": response.model,
        "output": [item_object(item) for item in response.output],
        "parallel_tool_calls": settings.parallel_tool_calls,
        "previous_response_id": settings.previous_response_id,
        "prompt_cache_key": settings.prompt_cache_key,
        "reasoning": {"effort": settings.reasoning_effort or None, "summary": settings.summary},
        "safety_identifier": settings.safety_identifier,
        "service_tier": "default",
        "store": bool(settings.store),
        "temperature": settings.sampling.temperature,
        "text": {"format": format_object(settings.output, settings.output_name), "verbosity": "medium"},
        "tool_choice": choice_object(settings.tool_choice),
        "tools": [tool_object(tool) for tool in settings.tools],
        "top_logprobs": settings.logprobs or 0,
        "top_p": settings.sampling.top_p,
        "presence_penalty": settings.sampling.presence_penalty,
        "frequency_penalty": settings.sampling.frequency_penalty,
        "truncation": "auto" if settings.shorten else "disabled",
        "usage": _usage(response.usage) if response.usage else None,
        "user": settings.user,
        "metadata": settings.metadata,
    }


def item_object(item: Item) -> dict[str, Any]:
    """Builds an item of a response's input or output."""
    if isinstance(item, MessageItem):
        content = [_part(part, item.role) for part in item.content]
        return {"id": item.id, "type": "message", "status": item.status, "role": item.role, "content": content}
    if isinstance(item, ReasoningItem):
        return {
            "id": item.id,
            "type": "reasoning",
            "status": item.status,
            "summary": [{"type": "summary_text", "text": text} for text in item.summary],
            "content": [{"type": "reasoning_text", "text": item.text}] if item.text else [],
            "encrypted_content": None,
        }
    call = {"id": item.id, "type": item.__struct_config__.tag, "status": item.status, "call_id": item.call_id}
    if isinstance(item, FunctionOutputItem):
        return {**call, "output": item.output}
    return {**call, "name": item.name, "arguments": item.arguments}


def items_object(items: Sequence[Item], *, has_more: bool) -> dict[str, Any]:
    """Builds a page of items."""
    return {
        "object": "list",
        "data": [item_object(item) for item in items],
        "first_id": items[0].id if items else "",
        "last_id": items[-1].id if items else "",
        "has_more": has_more,
    }


class EventWriter:
    """Numbers the events of one stream and encodes them as server-sent events."""

    def __init__(self) -> None:
        self._next = 0

    def event(self, event: Event, number: int | None = None) -> bytes:
        """Encodes one event; `number` is given if the event already has a sequence number."""
        sequence = self._next if number is None else number
        self._next = sequence + 1
        kind, content = _event(event)
        return sse.event(kind, {"type": kind, "sequence_number": sequence, **content})


def _event(event: Event) -> tuple[str, dict[str, Any]]:
    """Returns the type and the content of an event."""
    if isinstance(event, Progress):
        return f"response.{event.step}", {"response": response_object(event.response)}
    if isinstance(event, ItemAdded | ItemDone):
        item = item_object(_opened(event.item) if isinstance(event, ItemAdded) else event.item)
        kind = "added" if isinstance(event, ItemAdded) else "done"
        return f"response.output_item.{kind}", {"output_index": event.index, "item": item}
    if isinstance(event, Delta):
        place = _place(event.index, event.item, event.kind)
        logprobs = {"logprobs": token_objects(event.logprobs)} if event.kind == "text" else {}
        return f"{_DELTAS[event.kind]}.delta", {**place, "delta": event.text, **logprobs}
    if isinstance(event, DeltaDone):
        place = _place(event.index, event.item, event.kind)
        logprobs = {"logprobs": token_objects(event.logprobs)} if event.kind == "text" else {}
        key = "arguments" if event.kind == "arguments" else "text"
        return f"{_DELTAS[event.kind]}.done", {**place, key: event.text, **logprobs}
    kind = "added" if isinstance(event, PartAdded) else "done"
    place = _place(event.index, event.item.id, "text")
    return f"response.content_part.{kind}", {**place, "part": _only_part(event.item)}


def _place(index: int, item: str, kind: str) -> dict[str, Any]:
    place: dict[str, Any] = {"item_id": item, "output_index": index}
    return place if kind == "arguments" else {**place, "content_index": 0}


def _opened(item: Item) -> Item:
    """Returns a newly added item without content, because a separate event adds its part."""
    if isinstance(item, MessageItem):
        return MessageItem(id=item.id, role=item.role, content=(), status=item.status)
    return item


def _only_part(item: Item) -> dict[str, Any]:
    if isinstance(item, MessageItem):
        return _part(item.content[0], item.role)
    text = item.text if isinstance(item, ReasoningItem) else ""
    return {"type": "reasoning_text", "text": text}


def _part(part: Part, role: str) -> dict[str, Any]:
    if part.refusal:
        return {"type": "refusal", "refusal": part.text}
    if role != "assistant":
        return {"type": "input_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": token_objects(part.logprobs)}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        # Every prompt is cached if memory allows; the number of tokens written is not counted.
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
