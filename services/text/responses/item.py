"""The input and output items of a response.

The store keeps them in this form: a new field needs a default, and existing fields must never change.
"""

from __future__ import annotations

import secrets
from typing import Literal

import msgspec

from services.errors import InvalidRequest
from services.text.engine.messages import TokenLogprob

MAX_ID = 256  # characters of an id that a caller supplies

ItemStatus = Literal["in_progress", "completed", "incomplete"]
MessageRole = Literal["system", "developer", "user", "assistant"]


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message's content."""

    text: str
    refusal: bool = False  # True for a refusal of the assistant
    logprobs: tuple[TokenLogprob, ...] = ()


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """A message."""

    id: str
    role: MessageRole
    content: tuple[Part, ...]
    status: ItemStatus = "completed"


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """The reasoning of the model."""

    id: str
    text: str
    summary: tuple[str, ...] = ()
    status: ItemStatus = "completed"


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A tool call by the model."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class FunctionOutputItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    """The result of a tool call."""

    id: str
    call_id: str
    output: str
    status: ItemStatus = "completed"


Item = MessageItem | ReasoningItem | FunctionCallItem | FunctionOutputItem


class ItemReference(msgspec.Struct, frozen=True, kw_only=True):
    """A reference, in a request, to an item of a stored response."""

    id: str


def new_id(kind: Literal["resp", "msg", "rs", "fc", "fco"]) -> str:
    """Returns a new unguessable id for a response, message, reasoning, call or call output."""
    return f"{kind}_{secrets.token_hex(24)}"


def given_id(given: str | None, kind: Literal["msg", "rs", "fc", "fco"], param: str) -> str:
    """Returns the caller's id, or a new one if the caller gave none. Raises InvalidRequest if the id is too long."""
    if given and len(given) > MAX_ID:
        raise InvalidRequest(f"'{param}' has an id of {len(given)} characters; {MAX_ID} are allowed.", param=param)
    return given or new_id(kind)
