"""Anthropic's Messages: requests, decoded from JSON, checked, and converted to the core's types.

Reference: https://docs.claude.com/en/api/messages. Extensions are those of openai_sampling.py. Null and unknown fields
of messages, blocks and tools are accepted, because clients send back what they got; so is `cache_control`: every prefix
is cached.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text import limits
from services.text.api.openai_sampling import SamplingBody, refuse_others, sampling_of
from services.text.conversation import (
    ChatRequest,
    Message,
    OutputFormat,
    ReasoningEffort,
    Tool,
    ToolCall,
    ToolChoice,
)
from services.text.engine.sampling import SamplingParams

Blocks = str | list[dict[str, Any]]
# The least budgets of thinking, in tokens, that count as medium and high effort.
MEDIUM_BUDGET, HIGH_BUDGET = 4_096, 16_384
# What a model reads before the result of a tool that failed.
FAILED = "Error: "
_APART = "\n\n"  # between blocks of text, and between consecutive messages of the same role


class MessageBody(msgspec.Struct):
    """One message of the request."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class TextBlock(msgspec.Struct):
    """A block with plain text."""

    text: str


class ThinkingBlock(msgspec.Struct):
    """A block with the model's reasoning, from an earlier answer."""

    thinking: str


class ToolUseBlock(msgspec.Struct):
    """A call of a tool, from an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct):
    """The result of a call."""

    tool_use_id: str
    content: Blocks | None = None
    is_error: bool | None = None


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
        found.append(Message(role="system", content=_text(request.system, "system")))
    for at, one in enumerate(given):
        for message in _turn(one, f"messages[{at}]"):
            if found and message.role == found[-1].role != "tool" and not found[-1].tool_calls:
                found[-1] = _joined(found[-1], message)  # many templates want the roles to alternate
            else:
                found.append(message)
    return tuple(found)


def _joined(first: Message, second: Message) -> Message:
    content = _APART.join(filter(None, (first.content, second.content)))
    reasoning = _APART.join(filter(None, (first.reasoning, second.reasoning)))
    return dataclasses.replace(first, content=content, reasoning=reasoning, tool_calls=second.tool_calls)


def _turn(message: MessageBody, param: str) -> Iterator[Message]:
    """Yields the core's messages for one of Anthropic's: results of tools are messages of their own there."""
    content = message.content
    if isinstance(content, str):
        yield Message(role=message.role, content=content)
    elif message.role == "assistant":
        yield _answer(content, f"{param}.content")
    elif message.role == "system":
        yield Message(role="system", content=_text(content, f"{param}.content"))
    else:
        yield from _user(content, f"{param}.content")


def _user(blocks: Sequence[Mapping[str, Any]], param: str) -> Iterator[Message]:
    texts: list[str] = []
    for at, block in enumerate(blocks):
        where = f"{param}[{at}]"
        if block.get("type") != "tool_result":
            texts.append(_text([block], where, within=False))
            continue
        if texts:
            yield Message(role="user", content=_APART.join(texts))
            texts = []
        result = body.convert(block, ToolResultBlock, where)
        content = _text(result.content or "", f"{where}.content")
        yield Message(
            role="tool", content=f"{FAILED}{content}" if result.is_error else content, tool_call_id=result.tool_use_id
        )
    if texts or not blocks:
        yield Message(role="user", content=_APART.join(texts))


def _answer(blocks: Sequence[Mapping[str, Any]], param: str) -> Message:
    texts, thoughts, calls = [], [], []
    for at, block in enumerate(blocks):
        where, kind = f"{param}[{at}]", block.get("type")
        if kind == "thinking":
            thoughts.append(body.convert(block, ThinkingBlock, where).thinking)
        elif kind == "tool_use":
            use = body.convert(block, ToolUseBlock, where)
            calls.append(ToolCall(id=use.id, name=use.name, arguments=_json(use.input, f"{where}.input")))
        elif kind != "redacted_thinking":  # Anthropic's secret
            texts.append(_text([block], where, within=False))
    return Message(role="assistant", content="".join(texts), reasoning="".join(thoughts), tool_calls=tuple(calls))


def _json(value: Mapping[str, Any], param: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise InvalidRequest(f"'{param}' is nested too deeply.", param=param) from error


def _text(content: str | Sequence[Mapping[str, Any]], param: str, *, within: bool = True) -> str:
    """Returns the text of blocks. `within`: `param` names the list, not its only block."""
    if isinstance(content, str):
        return content
    texts = []
    for at, block in enumerate(content):
        where, kind = f"{param}[{at}]" if within else param, block.get("type")
        if kind is None:
            raise InvalidRequest(f"Missing required parameter: '{where}.type'.", param=f"{where}.type")
        if kind != "text":
            yet = "images are not supported yet." if kind == "image" else f"blocks of type {str(kind)[:40]!r} are not."
            raise Unsupported(f"'{where}': only text is supported here; {yet}", param=where)
        texts.append(body.convert(block, TextBlock, where).text)
    return _APART.join(texts)
