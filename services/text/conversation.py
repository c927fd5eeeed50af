"""What a chat is about, in allm's own words: no JSON, no protobuf, no tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.text.engine.sampling import SamplingParams

Role = Literal["system", "developer", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool that the assistant made earlier in the conversation."""

    id: str
    name: str
    arguments: str  # JSON text, as the model wrote it


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request for the assistant's next message."""

    model: str  # id or alias
    messages: tuple[Message, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request took, in tokens."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
