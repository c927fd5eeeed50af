"""The chat types of the core: a request, and the events of its answer. Independent of wire formats and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from services.text.engine.messages import TokenLogprob
from services.text.engine.sampling import SamplingParams

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls"]
Detail = Literal["auto", "low", "high"]
ReasoningEffort = Literal["", "none", "minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call by the assistant."""

    id: str
    name: str
    arguments: str  # JSON text, as the model wrote it


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture in the content of a message, as the caller sent it: a file or an address."""

    at: int  # the number of characters of the content that come before it
    param: str  # the caller's name of it, for errors, such as `messages[0].content[1].image_url.url`
    data: bytes = b""  # the file; empty: it is at `url`
    url: str = ""  # without `data`: an address, or a data URL that the core decodes
    detail: Detail = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str
    pictures: tuple[Picture, ...] = ()  # in the order of the content
    name: str = ""
    reasoning: str = ""  # an assistant's reasoning before its text
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A caller's group of tools."""

    name: str
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call."""

    name: str  # for the model; of a member of a namespace `flat_name`
    description: str = ""
    parameters: dict[str, Any] | None = None  # JSON Schema of the arguments; None: no arguments
    # Whether the arguments must follow the schema even if the model is free not to call; None: if it is supported.
    strict: bool | None = False
    namespace: Namespace | None = None
    member: str = ""  # its name in its namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Which tools the model may or must call."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: frozenset[str] = frozenset()  # the allowed tools; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """The required format of the answer's text."""

    kind: Literal["text", "json_object", "json_schema", "choice", "regex", "lark", "gbnf"] = "text"
    schema: dict[str, Any] | None = None  # for json_schema
    choices: tuple[str, ...] = ()  # the possible answers; for choice
    source: str = ""  # a regex that the whole answer matches, or a grammar: lark is llguidance's, gbnf llama.cpp's


FREE_TEXT = OutputFormat()


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
    logprobs: int | None = None  # None: off; otherwise the number of top alternatives to return per token
    reasoning_effort: ReasoningEffort = ""  # empty: the model's default
    effort_required: bool = True  # whether a model that has not this effort is refused; otherwise it uses its nearest
    room_required: bool = True  # whether max_tokens must fit into the context; otherwise the answer ends with it
    prediction: str = ""  # the answer that the caller expects, which may make it faster; empty: none
    cache_key: str = ""  # the caller's name for the session, so that its prefix stays in the cache; empty: none
    # By tool: the schema of its arguments as a grammar has it, empty without a grammar. None: the request's schemas are
    # not checked yet (`SchemaChecker`).
    tool_schemas: Mapping[str, dict[str, Any]] | None = None
    answer_lark: str = ""  # the grammar of the answer's text, if its format is not JSON; from the same check
    template_variables: Mapping[str, Any] = field(default_factory=dict)  # of the chat template, such as enable_thinking

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The pictures of all messages, in order."""
        return tuple(picture for message in self.messages for picture in message.pictures)

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the model may call."""
        if self.tool_choice.mode == "none":
            return ()
        names = self.tool_choice.names
        return tuple(tool for tool in self.tools if not names or tool.name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The token usage of a request."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0  # included in completion_tokens
    accepted_tokens: int = 0  # included in completion_tokens: guessed before they were sampled
    rejected_tokens: int = 0  # guesses that were wrong; not included in completion_tokens

    @property
    def facts(self) -> dict[str, int]:
        """The counts for the request's log line."""
        return {"prompt": self.prompt_tokens, "cached": self.cached_tokens, "completion": self.completion_tokens}


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text. A parser's text is never empty; a running answer's may be if there are logprobs."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The model calls one of the tools; its arguments follow."""

    index: int  # among the answer's calls, from 0
    name: str
    id: str = ""  # empty in a parser's event


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text for the caller. Never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of a call. Truncated arguments are not complete JSON."""

    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason
    stop: str = ""  # the stop string that ended it, if one did


ParsedEvent = ReasoningDelta | TextDelta | CallStarted | CallArguments | CallEnded
AnswerEvent = ReasoningDelta | TextDelta | CallStarted | CallArguments | Finished  # of a running answer
