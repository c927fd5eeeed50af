"""The messages of a conversation, made from the items of responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from services.errors import InvalidRequest
from services.text.conversation import Message, Picture, ToolCall
from services.text.responses.response import (
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    MessageItem,
    Part,
    ReasoningItem,
    flat_name,
)

_GUIDING = ("system", "developer")


def messages_of(items: Sequence[Item], instructions: str | None, stored: int = 0) -> tuple[Message, ...]:
    """Converts items to messages, with `instructions` first. `stored`: how many of the first are not in the request.

    Consecutive reasoning, text and calls of the assistant become one message. Leading system and developer messages are
    merged with `instructions`. Chat templates support no other form.

    Raises:
        InvalidRequest: a tool output has no matching call.
    """
    messages = [Message(role="system", content=instructions)] if instructions else []
    names: dict[str, str] = {}  # call -> tool
    for at, item in enumerate(items, -stored):
        param = f"input[{at}]" if at >= 0 else "input"
        if isinstance(item, FunctionOutputItem):
            if item.call_id not in names:
                reason = f"No tool call found for function call output with call_id {item.call_id[:80]!r}."
                raise InvalidRequest(reason, param="input")
            name = names[item.call_id]
            text, pictures = _content(item.parts, f"{param}.output")
            message = Message(role="tool", content=item.output or text, name=name, tool_call_id=item.call_id)
            messages.append(replace(message, pictures=pictures))
        elif isinstance(item, FunctionCallItem):
            names[item.call_id] = name = flat_name(item.namespace, item.name)
            last, call = _assistant(messages), ToolCall(id=item.call_id, name=name, arguments=item.arguments)
            messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))
        elif isinstance(item, ReasoningItem):
            thought = item.text or "\n".join(item.summary)
            if thought:
                last = _assistant(messages)
                messages[-1] = replace(last, reasoning=f"{last.reasoning}\n{thought}".strip())
        else:
            _add_message(messages, item, f"{param}.content")
    # Drops reasoning that no text or call follows: it is not a message.
    return tuple(one for one in messages if one.role != "assistant" or one.content or one.tool_calls)


def shortened(messages: tuple[Message, ...]) -> Iterator[tuple[Message, ...]]:
    """Yields the conversation without its oldest 1, 2, 4, ... turns. A turn begins with a user message.

    Leading system and developer messages stay, and so does the last turn.
    """
    start = 0
    while start < len(messages) and messages[start].role in _GUIDING:
        start += 1
    turns = [at for at in range(start + 1, len(messages)) if messages[at].role == "user"]
    drop = 1
    while turns:
        at = turns[min(drop, len(turns)) - 1]
        yield (*messages[:start], *messages[at:])
        if drop >= len(turns):
            return
        drop *= 2


def _add_message(messages: list[Message], item: MessageItem, param: str) -> None:
    text, pictures = _content(item.content, param)
    if item.role == "assistant":
        last = _assistant(messages, new_after_content=True)
        messages[-1] = replace(last, content=text, pictures=pictures)
    elif item.role in _GUIDING and len(messages) == 1 and messages[0].role in _GUIDING:
        messages[0] = replace(messages[0], content=f"{messages[0].content}\n\n{text}", pictures=pictures)
    else:
        messages.append(Message(role=item.role, content=text, pictures=pictures))


def _content(parts: Sequence[Part], param: str) -> tuple[str, tuple[Picture, ...]]:
    text, pictures = "", []
    for at, part in enumerate(parts):
        if part.image_url:
            where = f"{param}[{at}]"
            pictures.append(Picture(at=len(text), param=where, url=part.image_url, detail=part.detail))
        text += part.text
    return text, tuple(pictures)


def _assistant(messages: list[Message], *, new_after_content: bool = False) -> Message:
    """Returns the current assistant message, which is the last one; appends a new one if necessary."""
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or (new_after_content and (last.content or last.tool_calls)):
        last = Message(role="assistant", content="")
        messages.append(last)
    return last
