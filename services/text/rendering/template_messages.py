"""Rewrites conversations for chat templates with limitations, without losing content.

The templates of gpt-oss and Llama 3 use only the first call of a message. That of gpt-oss also drops later system
messages, and rejects a call after both reasoning and text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from services.text.conversation import Message

_SYSTEM = ("system", "developer")


def one_call_each(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Splits messages with several calls into one message per call, each followed by its result."""
    return tuple(_split(messages))


def with_one_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Merges all system and developer messages into one at the beginning."""
    said = [message for message in messages if message.role in _SYSTEM]
    if not said:
        return messages
    first = replace(said[0], content="\n\n".join(message.content for message in said if message.content))
    return (first, *(message for message in messages if message.role not in _SYSTEM))


def with_thoughts_before_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Moves text before a call into the reasoning, if the message has reasoning."""
    return tuple(
        replace(message, reasoning=f"{message.reasoning}\n\n{message.content}", content="")
        if message.tool_calls and message.reasoning and message.content
        else message
        for message in messages
    )


def _split(messages: tuple[Message, ...]) -> Iterator[Message]:
    at = 0
    while at < len(messages):
        message, calls = messages[at], messages[at].tool_calls
        at += 1
        if len(calls) < 2:
            yield message
            continue
        results = list(itertools.takewhile(lambda following: following.role == "tool", messages[at:]))
        at += len(results)
        for call in calls:
            yield replace(message, tool_calls=(call,))
            message = Message(role="assistant", content="")  # text and reasoning stay in the first message
            yield from (result for result in results if result.tool_call_id == call.id)
        called = {call.id for call in calls}
        yield from (result for result in results if result.tool_call_id not in called)
