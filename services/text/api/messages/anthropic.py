"""Anthropic's Messages: messages and stream events, built from the core's results.

Reference: https://docs.claude.com/en/api/messages-streaming. The output items of Responses become content blocks: both
formats have one for each thought, text and call, in the order in which the model writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from services.text.conversation import AnswerEvent, Finished, Usage
from services.text.responses.response import Delta, Event, FunctionCallItem, Item, ItemAdded, ItemDone, ReasoningItem
from services.text.responses.run import Output

# Clients send a thought back only if it has a signature. This server checks none.
SIGNATURE = "allm"
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "arguments": ("input_json_delta", "partial_json"),
}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Builds the `usage` object: its input tokens exclude those read from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


class MessageWriter:
    """Builds one message, whole or as the events of a stream."""

    def __init__(self, message_id: str, model: str, max_tokens: int, *, thoughts_shown: bool = True) -> None:
        """`max_tokens`: of the request. `thoughts_shown`: otherwise the blocks of thoughts are empty."""
        self._head = {"id": message_id, "type": "message", "role": "assistant", "model": model}
        self._max_tokens = max_tokens
        self._thoughts_shown = thoughts_shown
        self._output = Output()
        self._finished = Finished("stop")
        self._begun = False

    def whole(self, usage: Usage) -> dict[str, Any]:
        """Builds the message, after all events were taken."""
        content = [self._block(item) for item in self._output.items]
        return {**self._head, "content": content, **self._end(usage), "usage": self._usage(usage)}

    def events(self, event: AnswerEvent, usage: Usage) -> Iterator[dict[str, Any]]:
        """Yields the stream's events for an event of the core. `usage`: as far as it is known."""
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": self._start(usage)}
        for each in self._output.take(event):
            yield from self._block_events(each)
        if isinstance(event, Finished):
            self._finished = event
            yield {"type": "message_delta", "delta": self._end(usage), "usage": usage_object(usage)}
            yield {"type": "message_stop"}

    def _start(self, usage: Usage) -> dict[str, Any]:
        return {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(usage),
        }

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {**usage_object(usage), "service_tier": "standard"}

    def _end(self, usage: Usage) -> dict[str, Any]:
        finished = self._finished
        reason = _REASONS[finished.reason]
        if finished.stop:
            reason = "stop_sequence"
        elif finished.reason == "length" and usage.completion_tokens < self._max_tokens:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": finished.stop or None}

    def _block_events(self, event: Event) -> Iterator[dict[str, Any]]:
        if isinstance(event, ItemAdded):
            yield {"type": "content_block_start", "index": event.index, "content_block": self._block(event.item)}
            if event.index == 0:
                yield {"type": "ping"}
        elif isinstance(event, Delta) and (event.kind != "reasoning" or self._thoughts_shown):
            kind, field = _DELTAS[event.kind]
            yield self._delta(event.index, {"type": kind, field: event.text})
        elif isinstance(event, ItemDone):
            if isinstance(event.item, ReasoningItem):
                yield self._delta(event.index, {"type": "signature_delta", "signature": SIGNATURE})
            yield {"type": "content_block_stop", "index": event.index}

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": delta}

    def _block(self, item: Item) -> dict[str, Any]:
        """Builds a block; that of an item in progress is empty."""
        done = item.status != "in_progress"
        if isinstance(item, ReasoningItem):
            thinking = item.text if self._thoughts_shown else ""
            return {"type": "thinking", "thinking": thinking, "signature": SIGNATURE if done else ""}
        if isinstance(item, FunctionCallItem):
            call_id = f"toolu_{item.call_id.removeprefix('call_')}"
            return {"type": "tool_use", "id": call_id, "name": item.name, "input": arguments_object(item.arguments)}
        return {"type": "text", "text": "".join(part.text for part in getattr(item, "content", ()))}


def arguments_object(arguments: str) -> msgspec.Raw:
    """Returns a call's arguments as JSON: an empty object where they are no object, such as those of a cut-off call."""
    data = arguments.encode()
    try:
        msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        data = b"{}"
    return msgspec.Raw(data)
