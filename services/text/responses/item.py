"""Items: what a response is given and what it answers.

They are kept in the store as they are, so a field may be added, with a default, but never changed.
"""

from __future__ import annotations

import secrets
from typing import Literal

import msgspec

from services.text.engine.messages import TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Speaker = Literal["system", "developer", "user", "assistant"]


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a message's content."""

    text: str
    refusal: bool = False  # whether it is how the assistant declined
    logprobs: tuple[TokenLogprob, ...] = ()


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """Something said."""

    id: str
    role: Speaker
    content: tuple[Part, ...]
    status: ItemStatus = "completed"


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thought."""

    id: str
    text: str
    summary: tuple[str, ...] = ()
    status: ItemStatus = "completed"


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A call of a tool by the model."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class FunctionOutputItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    """What a tool gave back."""

    id: str
    call_id: str
    output: str
    status: ItemStatus = "completed"


Item = MessageItem | ReasoningItem | FunctionCallItem | FunctionOutputItem


class ItemReference(msgspec.Struct, frozen=True, kw_only=True):
    """In a request, stands for an item of a stored response."""

    id: str


def new_id(kind: Literal["resp", "msg", "rs", "fc", "fco"]) -> str:
    """A fresh id of a response, message, thought, call or output. Nobody can guess another's."""
    return f"{kind}_{secrets.token_hex(24)}"
