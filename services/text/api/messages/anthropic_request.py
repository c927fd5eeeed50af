"""Anthropic's Messages: requests, decoded from JSON, checked, and converted to the core's types.

Reference: https://docs.claude.com/en/api/messages. Extensions are those of openai_sampling.py. Null and unknown fields
of messages, blocks and tools are accepted, because clients send back what they got; so is `cache_control`: every prefix
is cached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text import limits
from services.text.api.messages.anthropic_blocks import Blocks, MessageBody, joined, text_of, turns
from services.text.api.openai_sampling import SamplingBody, refuse_others, sampling_of
from services.text.conversation import (
    ChatRequest,
    Message,
    OutputFormat,
    ReasoningEffort,
    Tool,
    ToolChoice,
)
from services.text.engine.sampling import SamplingParams

# The least budgets of thinking, in tokens, that count as medium and high effort.
MEDIUM_BUDGET, HIGH_BUDGET = 4_096, 16_384


class ToolBody(msgspec.Struct):
    """A tool, with the JSON Schema of its input."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None  # declared only to be rejected


class ToolChoiceBody(msgspec.Struct):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingBody(msgspec.Struct):
    """The switch of the model's reasoning, and of showing it in the answer."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """The format for JSON that follows a schema."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    """The effort and the format of an answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class Metadata(msgspec.Struct):
    """The caller's label of its user; it has no effect."""

    user_id: str | None = None


class PromptBody(SamplingBody, kw_only=True):
    """The body of POST /v1/messages/count_tokens. The last group of fields is declared only to be rejected."""

    model: str
    messages: list[MessageBody]
    system: Blocks | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: ThinkingBody | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None

    container: Any = None
    mcp_servers: list[Any] | None = None


class CreateBody(PromptBody, kw_only=True):
    """The body of POST /v1/messages. The last group of fields is declared only to be rejected."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    thread: Any = None
    compaction: Any = None


B = TypeVar("B", bound=PromptBody)


def read_request(raw: httpbody_pb2.HttpBody, kind: type[B]) -> tuple[B, ChatRequest, Mapping[str, str]]:
    """Reads and checks a request. Returns the decoded body, the core's request, and the caller's names for errors.

    The names are those of parameters that have other names in the core, by the core's name.

    Raises:
        InvalidRequest: a type or value is wrong; the error names the parameter.
        Unsupported: a parameter or content is not supported; the error names it.
    """
    request = body.decode(raw, kind, {"messages": limits.MAX_MESSAGES})
    if isinstance(request, CreateBody):
        # The SDK's tool runner starts a thread, and without this refusal would send only what is new from then on.
        refuse_others((("thread", request.thread, ()), ("compaction", request.compaction, ())))
    refuse_others((("container", request.container, ()), ("mcp_servers", request.mcp_servers, ([],))))
    tools = _tools(request.tools or ())
    choice = request.tool_choice
    config = request.output_config or OutputConfig()
    chat = ChatRequest(
        model=request.model,
        messages=_messages(request),
        sampling=_sampling(request),
        tools=tools,
        tool_choice=_choice(choice, tools),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        output=OutputFormat(kind="json_schema", schema=config.format.schema) if config.format else OutputFormat(),
        reasoning_effort=_effort(request.thinking, config.effort),
        effort_required=False,
        room_required=False,  # clients ask for the most that they ever want
    )
    names = _parameter_names(request)
    with body.called(names):
        limits.check(chat)
    return request, chat, names


def _sampling(request: PromptBody) -> SamplingParams:
    if not isinstance(request, CreateBody):
        return sampling_of(request, None)
    sampling = sampling_of(request, request.max_tokens)
    return dataclasses.replace(sampling, stop=tuple(request.stop_sequences)) if request.stop_sequences else sampling


def _parameter_names(request: PromptBody) -> dict[str, str]:
    schemas = {f"tools[{at}].parameters": f"tools[{at}].input_schema" for at in range(len(request.tools or ()))}
    stop = {} if request.stop else {"stop": "stop_sequences"}
    return {**schemas, **stop, "response_format": "output_config.format", "reasoning_effort": "thinking"}


def platform_tools(given: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Returns the types of the tools that only Anthropic defines, by index; none if the caller has no other tools.

    A caller with tools of its own can do without them, so they are left out. Otherwise they are refused.
    """
    kinds = {at: str(tool.get("type") or "custom") for at, tool in enumerate(given)}
    own = "custom" in kinds.values()
    return {at: kind for at, kind in kinds.items() if own and kind != "custom"}


def _tools(given: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    left_out = platform_tools(given)
    return tuple(_tool(one, f"tools[{at}]") for at, one in enumerate(given) if at not in left_out)


def _tool(given: Mapping[str, Any], param: str) -> Tool:
    kind = given.get("type") or "custom"
    if kind != "custom":
        raise Unsupported(f"'{param}': tools of type {str(kind)[:40]!r} are not supported.", param=param)
    tool = body.convert(given, ToolBody, param)
    refuse_others(((f"{param}.defer_loading", tool.defer_loading, (False,)),))
    return Tool(
        name=tool.name,
        description=tool.description or "",
        parameters=tool.input_schema,
        strict=bool(tool.strict),
    )


def _choice(choice: ToolChoiceBody | None, tools: Sequence[Tool]) -> ToolChoice:
    if choice is None or choice.type == "auto":
        return ToolChoice()
    if choice.type == "none":
        return ToolChoice(mode="none")
    if choice.type == "tool" and not choice.name:
        raise InvalidRequest("Missing required parameter: 'tool_choice.name'.", param="tool_choice.name")
    names = [choice.name] if choice.type == "tool" and choice.name else []
    return limits.checked_choice("required", names, tools)


def _effort(thinking: ThinkingBody | None, effort: ReasoningEffort | None) -> ReasoningEffort:
    """Returns the effort: without `thinking` and without an effort, a model that can do without thinking does."""
    if thinking is None:
        return effort or "none"
    if thinking.type == "disabled":
        return "none"
    if thinking.type != "enabled" or effort:
        return effort or ""
    budget = thinking.budget_tokens
    if budget is None:
        param = "thinking.budget_tokens"
        raise InvalidRequest(f"Missing required parameter: '{param}'.", param=param)
    if budget < MEDIUM_BUDGET:
        return "low"
    return "medium" if budget < HIGH_BUDGET else "high"


def _messages(request: PromptBody) -> tuple[Message, ...]:
    given = request.messages
    if given and given[-1].role == "assistant":
        param = f"messages[{len(given) - 1}]"
        why = f"'{param}': an answer that the caller begins (prefill) is not supported: end with a user message."
        raise Unsupported(why, param=param)
    found: list[Message] = []
    if request.system:
        found.append(Message(role="system", content=text_of(request.system, "system")))
    for at, one in enumerate(given):
        for message in turns(one, f"messages[{at}]"):
            if found and message.role == found[-1].role != "tool" and not found[-1].tool_calls:
                found[-1] = joined(found[-1], message)  # many templates want the roles to alternate
            else:
                found.append(message)
    return tuple(found)
