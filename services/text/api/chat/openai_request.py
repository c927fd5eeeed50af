"""OpenAI's Chat Completions: requests, decoded from JSON, checked, and converted to the core's types.

Reference: https://platform.openai.com/docs/api-reference/chat. A parameter of OpenAI's API that allm does not support
is rejected by name; an unknown one is ignored and named in the response. Extensions: those of openai_sampling.py and
openai_constraints.py, `repetition_penalty` for `repeat_penalty`, and `chat_template_kwargs`. Null and unknown fields of
messages, parts and tools are accepted, because clients send back what they got. The deprecated `functions`,
`function_call` and messages of the role `function` become tools, choices, calls and results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text import limits
from services.text.api.chat.openai_content import ContentPart, content_of
from services.text.api.openai_constraints import ConstraintBody, constrained
from services.text.api.openai_sampling import check_metadata, refuse_others, sampling_of
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
from services.text.limits import checked_choice


class FunctionCall(msgspec.Struct):
    """A function call of the assistant, with its arguments as JSON text."""

    name: str
    arguments: str | None = None


class MessageToolCall(msgspec.Struct):
    """A tool call in an assistant message."""

    id: str
    function: FunctionCall
    type: Literal["function"] | None = None


class RequestMessage(msgspec.Struct):
    """One message of the request."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None  # from an earlier answer


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class FunctionDefinition(msgspec.Struct):
    """A function: its name, its description, and the JSON Schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, tag_field="type", tag="function"):
    """A function tool."""

    function: FunctionDefinition


class CustomTool(msgspec.Struct, tag_field="type", tag="custom"):
    """A tool with free text as its argument; declared only to be rejected."""


ToolDefinition = FunctionTool | CustomTool


class FunctionName(msgspec.Struct):
    """A function name."""

    name: str


class NamedFunction(msgspec.Struct, tag_field="type", tag="function"):
    """A tool that must be called; in a list, one that may be called."""

    function: FunctionName


class NamedCustom(msgspec.Struct, tag_field="type", tag="custom"):
    """A custom tool; declared only to be rejected."""


class AllowedTools(msgspec.Struct):
    """A subset of the tools: the model may call one of them or, in mode `required`, must."""

    mode: Literal["auto", "required"]
    tools: list[NamedFunction | NamedCustom]


class AllowedToolsChoice(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    """A tool choice that names a subset of the tools."""

    allowed_tools: AllowedTools


ToolChoiceBody = Literal["none", "auto", "required"] | NamedFunction | NamedCustom | AllowedToolsChoice


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """The format for plain text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """The format for any JSON object, or, as in llama.cpp, for JSON that follows a schema."""

    schema: dict[str, Any] | None = None


class JsonSchema(msgspec.Struct):
    """A named schema. The answer follows it with or without `strict`."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """The format for JSON that follows a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


def tools_of(definitions: Sequence[ToolDefinition]) -> tuple[Tool, ...]:
    """Converts tools to the core's type. Raises Unsupported for tools that are not functions."""
    tools = []
    for at, definition in enumerate(definitions):
        if isinstance(definition, CustomTool):
            raise Unsupported(f"'tools[{at}]': tools of type 'custom' are not supported.", param=f"tools[{at}]")
        function = definition.function
        tools.append(
            Tool(
                name=function.name,
                description=function.description or "",
                parameters=function.parameters,
                strict=bool(function.strict),
            )
        )
    return tuple(tools)


def choice_of(choice: ToolChoiceBody | None, tools: Sequence[Tool]) -> ToolChoice:
    """Converts a tool choice to the core's type.

    Raises:
        InvalidRequest: it names an unknown tool, or requires one although there are none.
        Unsupported: it names a custom tool.
    """
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        return checked_choice(choice, (), tools)
    if isinstance(choice, AllowedToolsChoice):
        names = [_name(tool) for tool in choice.allowed_tools.tools]
        if not names:
            raise InvalidRequest("'tool_choice.allowed_tools.tools' is empty.", param="tool_choice")
        return checked_choice(choice.allowed_tools.mode, names, tools)
    return checked_choice("required", [_name(choice)], tools)


def output_of(given: ResponseFormat | None) -> OutputFormat:
    """Converts a response format to the core's type. Raises InvalidRequest if a schema is missing."""
    if isinstance(given, JsonObjectFormat):
        return OutputFormat(kind="json_schema" if given.schema else "json_object", schema=given.schema or None)
    if isinstance(given, JsonSchemaFormat):
        if given.json_schema.schema is None:
            param = "response_format.json_schema.schema"
            raise InvalidRequest(f"Missing required parameter: '{param}'.", param=param)
        return OutputFormat(kind="json_schema", schema=given.json_schema.schema)
    return OutputFormat()


def _name(tool: NamedFunction | NamedCustom) -> str:
    if isinstance(tool, NamedCustom):
        raise Unsupported("'tool_choice': tools of type 'custom' are not supported.", param="tool_choice")
    return tool.function.name


class Prediction(msgspec.Struct, tag_field="type", tag="content"):
    """The text that the caller expects as the answer."""

    content: str | list[ContentPart]


class ChatCompletionRequest(ConstraintBody, kw_only=True):
    """The body of POST /v1/chat/completions. The last group of fields is declared only to be rejected."""

    model: str
    messages: list[RequestMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prediction: Prediction | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: Literal["none", "auto"] | FunctionName | None = None

    modalities: list[str] | None = None
    audio: Any = None
    verbosity: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    web_search_options: Any = None
    moderation: Any = None

    @property
    def legacy(self) -> bool:
        """True if calls must be returned as `function_call`."""
        return bool(self.functions)


def read_request(raw: httpbody_pb2.HttpBody) -> tuple[ChatCompletionRequest, ChatRequest, Mapping[str, str]]:
    """Reads and checks a request. Returns the decoded body, the core's request, and the caller's names for errors.

    The names are those of parameters that have other names in the core, by the core's name.

    Raises:
        InvalidRequest: a type or value is wrong; the error names the parameter.
        Unsupported: a parameter or content is not supported; the error names it.
    """
    request = body.decode(raw, ChatCompletionRequest, {"messages": limits.MAX_MESSAGES})
    _refuse_unsupported(request)
    check_metadata(request.metadata or {})
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise InvalidRequest("'max_tokens' and 'max_completion_tokens' are mutually exclusive.", param="max_tokens")
    if request.repeat_penalty is not None and request.repetition_penalty is not None:
        message = "'repeat_penalty' and 'repetition_penalty' are mutually exclusive."
        raise InvalidRequest(message, param="repetition_penalty")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
    tools, choice = _tools(request)
    output, names = constrained(request, output_of(request.response_format))
    chat = ChatRequest(
        model=request.model,
        messages=_messages(request.messages),
        sampling=_sampling(request),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False and not request.legacy,
        output=output,
        choices=1 if request.n is None else request.n,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        reasoning_effort=request.reasoning_effort or "",
        prediction=_prediction(request.prediction),
        cache_key=request.prompt_cache_key or "",
        template_variables=request.chat_template_kwargs or {},
    )
    pairs = {"max_tokens": "max_completion_tokens", "repeat_penalty": "repetition_penalty", "tools": "functions"}
    names = {**names, **{name: other for name, other in pairs.items() if getattr(request, other) is not None}}
    with body.called(names):
        limits.check(chat)
    return request, chat, names


def _tools(request: ChatCompletionRequest) -> tuple[tuple[Tool, ...], ToolChoice]:
    if request.functions is None and not isinstance(request.function_call, FunctionName):
        tools = tools_of(request.tools or ())
        return tools, choice_of(request.tool_choice, tools)
    if request.tools or request.tool_choice is not None:
        raise InvalidRequest("'functions' and 'tools' are mutually exclusive.", param="functions")
    tools = tools_of([FunctionTool(function) for function in request.functions or ()])
    choice = request.function_call
    with body.called({"tools": "functions", "tool_choice": "function_call"}):
        return tools, choice_of(NamedFunction(choice) if isinstance(choice, FunctionName) else choice, tools)


def _refuse_unsupported(request: ChatCompletionRequest) -> None:
    """Rejects unsupported parameters, except those whose value has no effect."""
    refuse_others(
        (
            ("modalities", request.modalities, (["text"],)),
            ("audio", request.audio, ()),
            ("verbosity", request.verbosity, ("medium",)),
            ("store", request.store, (False,)),
            ("service_tier", request.service_tier, ("auto", "default")),
            ("web_search_options", request.web_search_options, ()),
            ("moderation", request.moderation, ()),
        )
    )


def _messages(given: Sequence[RequestMessage]) -> tuple[Message, ...]:
    messages = []
    call_id = "call_0"  # of the last `function_call`, which has none
    for at, message in enumerate(given):
        if message.function_call:
            call_id = f"call_{at}"
        messages.append(_message(message, f"messages[{at}]", call_id))
    return tuple(messages)


def _message(message: RequestMessage, param: str, call_id: str) -> Message:
    content, pictures = content_of(message.content, f"{param}.content")
    if message.content in (None, []) and message.role != "assistant":
        raise InvalidRequest(f"'{param}.content' is missing.", param=f"{param}.content")
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidRequest(f"'{param}.tool_call_id' is missing.", param=f"{param}.tool_call_id")
    calls = list(message.tool_calls or ())
    if message.function_call:
        calls.append(MessageToolCall(call_id, message.function_call))
    of_function = message.role == "function"
    return Message(
        role="tool" if message.role == "function" else message.role,
        content=content or message.refusal or "",
        pictures=pictures,
        name=message.name or "",
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments or "") for call in calls
        ),
        tool_call_id=call_id if of_function else message.tool_call_id or "",
        reasoning=message.reasoning_content or "",
    )


def _prediction(given: Prediction | None) -> str:
    text, pictures = content_of(given.content if given else None, "prediction.content")
    if pictures:
        raise Unsupported("'prediction.content': a prediction has no pictures.", param="prediction.content")
    return text


def _sampling(request: ChatCompletionRequest) -> SamplingParams:
    limit = request.max_tokens if request.max_tokens is not None else request.max_completion_tokens
    sampling = sampling_of(request, limit, request.logit_bias)
    if request.repetition_penalty is None:
        return sampling
    return dataclasses.replace(sampling, repeat_penalty=request.repetition_penalty)
