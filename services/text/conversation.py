"""What a chat is about, in allm's own words: no JSON of the wire, no protobuf, no tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from services.text.engine.sampling import SamplingParams

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls"]
ReasoningEffort = Literal["", "none", "minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool by the assistant."""

    id: str
    name: str
    arguments: str  # JSON text, as the model wrote it


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str
    name: str = ""
    reasoning: str = ""  # what an assistant thought before it spoke
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None  # JSON Schema of its arguments; None: it takes none
    strict: bool = False  # whether its arguments must follow the schema even where the model is free not to call


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """What the model may or must do with the tools."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: frozenset[str] = frozenset()  # only these may be called; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """The shape that the answer's text must have."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    schema: dict[str, Any] | None = None  # of json_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request for the assistant's next message."""

    model: str  # id or alias
    messages: tuple[Message, ...]
    sampling: SamplingParams
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    output: OutputFormat = OutputFormat()
    choices: int = 1  # answers to the same conversation
    logprobs: int | None = None  # None: off; else how many of the likeliest tokens to tell beside each
    reasoning_effort: ReasoningEffort = ""  # empty: the model's own default
    cache_key: str = ""  # what the caller calls the session, so that its prefix stays in the cache; empty: nothing

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the model may call."""
        if self.tool_choice.mode == "none":
            return ()
        names = self.tool_choice.names
        return tuple(tool for tool in self.tools if not names or tool.name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request took, in tokens."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0  # of the completion
