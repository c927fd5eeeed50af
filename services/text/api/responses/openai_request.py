"""OpenAI's Responses: request parameters, converted to the core's types or rejected by name.

In addition to OpenAI's parameters, requests may have `presence_penalty`, `frequency_penalty`, `stop`, `seed`, `top_k`,
`min_p`, `repeat_penalty` and `ignore_eos`, as in Chat Completions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text.api.chat.openai_request import FunctionDefinition, FunctionName
from services.text.api.openai_constraints import ConstraintBody, constrained
from services.text.api.openai_sampling import check_metadata, refuse_others, sampling_of
from services.text.api.responses.openai_items import items_of
from services.text.conversation import Namespace, OutputFormat, ReasoningEffort, Tool, ToolChoice
from services.text.limits import MAX_MESSAGES, MAX_TOP_LOGPROBS, checked_choice
from services.text.responses.response import OutputName, ResponseRequest, ResponseSettings, flat_name
from services.text.schema import check_size

MAX_NOTE = 512  # characters of a value that is only returned to the caller
_FORMAT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# The first letters of the types of tools that run on OpenAI's platform.
_PLATFORM = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search")
LOGPROBS = "message.output_text.logprobs"
# Values that change nothing here: they belong to items that this server never produces, or that it always returns:
# the pictures of messages, and reasoning as plain text.
_NOTHING_TO_INCLUDE = frozenset(
    (
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    )
)

# The names used here for parameters that have another name in the core and the worker.
PARAMETER_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format.schema",
}


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_obfuscation: bool | None = None


class ReasoningOptions(msgspec.Struct):
    """Reasoning options. All but `effort` are declared only to be rejected."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: str | None = None
    mode: str | None = None


class TextOptions(msgspec.Struct):
    """Text output options."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ConversationBody(msgspec.Struct):
    """A conversation, as responses name it."""

    id: str


class PromptCacheOptions(msgspec.Struct):
    """Prompt cache options that change the answer, declared only to be rejected.

    The other options change nothing: prompts are cached anyway, as long as memory allows.
    """

    prewarm: bool | None = None
    comparison_response_id: str | None = None


class ResponseBody(ConstraintBody, kw_only=True):
    """The body of POST /v1/responses. The last group of fields is declared only to be rejected."""

    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationBody | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    service_tier: str | None = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    access_programs: Any = None
    background_options: Any = None
    image: Any = None
    personality: Any = None  # of input_tokens
    prompt_cache_options: PromptCacheOptions | None = None


def read_request(raw: httpbody_pb2.HttpBody) -> tuple[ResponseBody, ResponseRequest, Mapping[str, str]]:
    """Reads and checks a request. Returns the decoded body, the core's request, and the caller's names for errors.

    The names are those of parameters that have other names in the core or the worker, by those.

    Raises:
        InvalidRequest: a type or value is wrong; the error names the parameter.
        Unsupported: a parameter, an item or a tool is not supported; the error names it.
    """
    request = body.decode(raw, ResponseBody, {"input": MAX_MESSAGES})
    _refuse_unsupported(request)
    if request.conversation is not None and request.previous_response_id is not None:
        message = "'conversation' and 'previous_response_id' are mutually exclusive."
        raise InvalidRequest(message, param="conversation")
    if request.input is None and request.previous_response_id is None and request.conversation is None:
        raise InvalidRequest("Missing required parameter: 'input'.", param="input")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    _check_notes(request)
    text, output_name = format_of(request.text.format if request.text else None)
    output, names = constrained(request, text)
    names = {**PARAMETER_NAMES, **names}
    with body.called(names):
        settings = _settings(request, output, output_name)
    items = items_of(request.input if request.input is not None else [])
    return request, ResponseRequest(model=request.model, input=items, settings=settings), names


def check_include(include: Iterable[str] | None) -> bool:
    """Returns True if log probabilities are requested. Raises Unsupported for any other unknown value."""
    included = set(include or ())
    for name in sorted(included - _NOTHING_TO_INCLUDE - {LOGPROBS}):
        raise Unsupported(f"'include': {name[:80]!r} is not supported by this server.", param="include")
    return LOGPROBS in included


def _settings(request: ResponseBody, output: OutputFormat, name: OutputName) -> ResponseSettings:
    tools = tools_of(request.tools or ())
    reasoning = request.reasoning or ReasoningOptions()
    top = request.top_logprobs
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"'top_logprobs' must be 0 to {MAX_TOP_LOGPROBS}, not {top}.", param="top_logprobs")
    return ResponseSettings(
        instructions=request.instructions,
        sampling=sampling_of(request, request.max_output_tokens),
        tools=tools,
        tool_choice=choice_of(request.tool_choice, tools),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        output=output,
        template_variables=request.chat_template_kwargs or {},
        logprobs=(top or 0) if check_include(request.include) or top else None,
        reasoning_effort=reasoning.effort or "",
        previous_response_id=request.previous_response_id,
        conversation=_conversation(request),
        store=request.store,
        background=bool(request.background),
        streamed=bool(request.background and request.stream),
        shorten=request.truncation == "auto",
        output_name=name,
        summary=reasoning.summary,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        prompt_cache_key=request.prompt_cache_key,
        safety_identifier=request.safety_identifier,
        user=request.user,
    )


def _conversation(request: ResponseBody) -> str | None:
    given = request.conversation
    return given.id if isinstance(given, ConversationBody) else given


def _refuse_unsupported(request: ResponseBody) -> None:
    """Rejects unsupported parameters, except those whose value has no effect."""
    reasoning, text = request.reasoning or ReasoningOptions(), request.text or TextOptions()
    cache = request.prompt_cache_options or PromptCacheOptions()
    refuse_others(
        (
            ("service_tier", request.service_tier, ("auto", "default")),
            ("prompt", request.prompt, ()),
            ("context_management", request.context_management, ([],)),
            ("moderation", request.moderation, ()),
            ("access_programs", request.access_programs, ()),
            ("background_options", request.background_options, ({},)),
            ("image", request.image, ({}, {"context_compression": "auto"}, {"context_compression": "disabled"})),
            ("personality", request.personality, ()),
            ("text.verbosity", text.verbosity, ("medium",)),
            # Reasoning is returned in full. `auto` leaves the choice of a summary to the server, which makes none.
            ("reasoning.summary", reasoning.summary, ("auto",)),
            ("reasoning.generate_summary", reasoning.generate_summary, ("auto",)),
            ("reasoning.context", reasoning.context, ("auto",)),
            ("reasoning.mode", reasoning.mode, ("standard",)),
            ("prompt_cache_options.prewarm", cache.prewarm, (False,)),
            ("prompt_cache_options.comparison_response_id", cache.comparison_response_id, ()),
        )
    )


def _check_notes(request: ResponseBody) -> None:
    """Checks the bounds of values that are only returned to the caller."""
    check_metadata(request.metadata or {})
    for name in ("prompt_cache_key", "safety_identifier", "user", "previous_response_id"):
        if len(getattr(request, name) or "") > MAX_NOTE:
            raise InvalidRequest(f"'{name}' may have at most {MAX_NOTE} characters.", param=name)
    if request.max_tool_calls is not None and request.max_tool_calls < 0:
        message = f"'max_tool_calls' must be 0 or more, not {request.max_tool_calls}."
        raise InvalidRequest(message, param="max_tool_calls")


class FunctionBody(FunctionDefinition):
    """A function, with the JSON Schema of its arguments. These fields are declared only to be rejected."""

    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    asynchronous: bool | None = msgspec.field(default=None, name="async")


class ChosenBody(FunctionName):
    """A function that must or may be called."""

    namespace: str | None = None


class AllowedBody(msgspec.Struct):
    """A subset of the tools: the model may call one of them or, in mode `required`, must."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class SchemaBody(msgspec.Struct):
    """A named schema. The answer follows it with or without `strict`."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class NamespaceBody(msgspec.Struct):
    """A group of functions."""

    name: str
    tools: list[dict[str, Any]]
    description: str | None = None


def platform_tools(given: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Returns the types of the tools that only OpenAI's platform runs, by index; none if the caller has no other tools.

    A caller with tools of its own can do without them, so they are left out. Otherwise they are refused.
    """
    own = any(tool.get("type") in ("function", "namespace") for tool in given)
    kinds = {at: str(tool.get("type")) for at, tool in enumerate(given)}
    return {at: kind for at, kind in kinds.items() if own and kind.startswith(_PLATFORM)}


def tools_of(given: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Converts tools to the core's type. By default a function is strict if its schema is supported.

    Namespaces are flattened, and `platform_tools` are left out.

    Raises:
        InvalidRequest: a function is malformed.
        Unsupported: another tool is not a function.
    """
    left_out = platform_tools(given)
    tools: list[Tool] = []
    for at, one in enumerate(given):
        if one.get("type") == "namespace":
            tools += _members(one, f"tools[{at}]")
        elif at not in left_out:
            tools.append(_tool(one, f"tools[{at}]"))
    return tuple(tools)


def _members(given: Mapping[str, Any], param: str) -> Iterator[Tool]:
    group = body.convert(given, NamespaceBody, param)
    namespace = Namespace(name=group.name, description=group.description or "")
    for at, one in enumerate(group.tools):
        tool = _tool(one, f"{param}.tools[{at}]")
        yield dataclasses.replace(tool, name=flat_name(group.name, tool.name), namespace=namespace, member=tool.name)


def choice_of(choice: str | Mapping[str, Any] | None, tools: Sequence[Tool]) -> ToolChoice:
    """Converts a tool choice to the core's type.

    Raises:
        InvalidRequest: it names an unknown tool, or requires one although there are none.
        Unsupported: it names a tool that is not a function.
    """
    param = "tool_choice"
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice(mode="none")
    if choice == "required":
        return checked_choice("required", (), tools)
    if isinstance(choice, str):
        raise InvalidRequest("'tool_choice' must be 'none', 'auto', 'required' or an object.", param=param)
    if choice.get("type") == "allowed_tools":
        allowed = body.convert(choice, AllowedBody, param)
        names = [_name(one, f"{param}.tools[{at}]") for at, one in enumerate(allowed.tools)]
        if not names:
            raise InvalidRequest("'tool_choice.tools' is empty.", param=f"{param}.tools")
        return checked_choice(allowed.mode, names, tools)
    return checked_choice("required", [_name(choice, param)], tools)


def format_of(given: Mapping[str, Any] | None) -> tuple[OutputFormat, OutputName]:
    """Converts a text format to the core's type. Returns it with the caller's name for it. Raises InvalidRequest."""
    param = "text.format"
    kind = (given or {}).get("type", "text")
    if kind == "text":
        return OutputFormat(), OutputName()
    if kind == "json_object":
        return OutputFormat(kind="json_object"), OutputName()
    if kind != "json_schema":
        raise InvalidRequest(f"'{param}.type' must be 'text', 'json_object' or 'json_schema'.", param=f"{param}.type")
    definition = body.convert(given, SchemaBody, param)
    if not _FORMAT_NAME.fullmatch(definition.name):
        message = f"'{param}.name' must be 1 to 64 letters, digits, '_' and '-', not {definition.name[:80]!r}."
        raise InvalidRequest(message, param=f"{param}.name")
    name = OutputName(name=definition.name, description=definition.description, strict=definition.strict)
    check_size(definition.schema, f"{param}.schema")
    return OutputFormat(kind="json_schema", schema=definition.schema), name


def _tool(given: Mapping[str, Any], param: str) -> Tool:
    _refuse_others(given, param)
    function = body.convert(given, FunctionBody, param)
    callers = function.allowed_callers or ["direct"]
    refuse_others(
        (
            (f"{param}.allowed_callers", None if "direct" in callers else callers, ()),
            (f"{param}.defer_loading", function.defer_loading, (False,)),
            (f"{param}.async", function.asynchronous, (False,)),
        )
    )
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters,
        strict=True if function.strict is None and function.parameters is None else function.strict,
    )


def _name(given: Mapping[str, Any], param: str) -> str:
    _refuse_others(given, param)
    function = body.convert(given, ChosenBody, param)
    return flat_name(function.namespace or "", function.name)


def _refuse_others(given: Mapping[str, Any], param: str) -> None:
    kind = given.get("type")
    if kind is None:
        raise InvalidRequest(f"Missing required parameter: '{param}.type'.", param=f"{param}.type")
    if kind != "function":
        raise Unsupported(f"'{param}': tools of type {str(kind)[:40]!r} are not supported.", param=param)
