"""Conversations as chat templates of single calls want them.

Such a template, gpt-oss's or that of Llama 3, looks at the first call of a message only. gpt-oss's further leaves out
what a system says later on, and refuses a call behind both a thought and a text. Nothing of a conversation may be lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from services.text.conversation import Message

_SYSTEM = ("system", "developer")


def one_call_each(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Messages of several calls as one message for each call, with the call's result behind it."""
    return tuple(_split(messages))


def with_one_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Everything that systems and developers say in one message at the beginning."""
    said = [message for message in messages if message.role in _SYSTEM]
    if not said:
        return messages
    first = replace(said[0], content="\n\n".join(message.content for message in said if message.content))
    return (first, *(message for message in messages if message.role not in _SYSTEM))


def with_thoughts_before_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """What is said in front of a call as part of the thought there, where there is one."""
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
            message = Message(role="assistant", content="")  # what was said and thought stands before the first
            yield from (result for result in results if result.tool_call_id == call.id)
        called = {call.id for call in calls}
        yield from (result for result in results if result.tool_call_id not in called)
