"""OpenAI's Responses: request parameters, converted to the core's types or rejected by name.

In addition to OpenAI's parameters, requests may have `presence_penalty`, `frequency_penalty`, `stop`, `seed`, `top_k`,
`min_p`, `repeat_penalty` and `ignore_eos`, as in Chat Completions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text.api.openai_sampling import SamplingBody, check_metadata, refuse_others, sampling_of
from services.text.api.responses.openai_items import items_of
from services.text.api.responses.openai_tools import choice_of, format_of, tools_of
from services.text.conversation import ReasoningEffort
from services.text.limits import MAX_MESSAGES, MAX_TOP_LOGPROBS
from services.text.responses.response import ResponseRequest, ResponseSettings

MAX_NOTE = 512  # characters of a value that is only returned to the caller
LOGPROBS = "message.output_text.logprobs"
# Values that change nothing here: they belong to items that this server never produces. Encrypted reasoning is one of
# them because reasoning is always returned, and accepted, as plain text.
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

    include_obfuscation: bool | None = None  # declared only to be rejected


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


class PromptCacheOptions(msgspec.Struct):
    """Prompt cache options that change the answer, declared only to be rejected.

    The other options change nothing: prompts are cached anyway, as long as memory allows.
    """

    prewarm: bool | None = None
    comparison_response_id: str | None = None


class ResponseBody(SamplingBody, kw_only=True):
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

    service_tier: str | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    access_programs: Any = None
    background_options: Any = None
    image: Any = None
    personality: Any = None  # of input_tokens
    prompt_cache_options: PromptCacheOptions | None = None


def read_request(raw: httpbody_pb2.HttpBody) -> tuple[ResponseBody, ResponseRequest]:
    """Reads and checks a request. Returns the decoded body and the core's request.

    Raises:
        InvalidRequest: a type or value is wrong; the error names the parameter.
        Unsupported: a parameter, an item or a tool is not supported; the error names it.
    """
    request = body.decode(raw, ResponseBody, {"input": MAX_MESSAGES})
    _refuse_unsupported(request)
    if request.input is None and request.previous_response_id is None:
        raise InvalidRequest("Missing required parameter: 'input'.", param="input")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    _check_notes(request)
    items = items_of(request.input if request.input is not None else [])
    return request, ResponseRequest(model=request.model, input=items, settings=_settings(request))


def check_include(include: Iterable[str] | None) -> bool:
    """Returns True if log probabilities are requested. Raises Unsupported for any other unknown value."""
    included = set(include or ())
    for name in sorted(included - _NOTHING_TO_INCLUDE - {LOGPROBS}):
        raise Unsupported(f"'include': {name[:80]!r} is not supported by this server.", param="include")
    return LOGPROBS in included


def _settings(request: ResponseBody) -> ResponseSettings:
    tools = tools_of(request.tools or ())
    output, name = format_of(request.text.format if request.text else None)
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
        logprobs=(top or 0) if check_include(request.include) or top else None,
        reasoning_effort=reasoning.effort or "",
        previous_response_id=request.previous_response_id,
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


def _refuse_unsupported(request: ResponseBody) -> None:
    """Rejects unsupported parameters, except those whose value has no effect."""
    reasoning, text = request.reasoning or ReasoningOptions(), request.text or TextOptions()
    options, cache = request.stream_options or StreamOptions(), request.prompt_cache_options or PromptCacheOptions()
    refuse_others(
        (
            ("service_tier", request.service_tier, ("auto", "default")),
            ("conversation", request.conversation, ()),
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
            ("stream_options.include_obfuscation", options.include_obfuscation, (False,)),
            ("prompt_cache_options.prewarm", cache.prewarm, (False,)),
            ("prompt_cache_options.comparison_response_id", cache.comparison_response_id, ()),
        )
    )


def _check_notes(request: ResponseBody) -> None:
    """Checks the bounds of values that are only returned to the caller."""
    check_metadata(request.metadata or {})
    for name in ("prompt_cache_key", "safety_identifier", "user", "previous_response_id"):
        if len(getattr(request, name) or "") > MAX_NOTE:
            raise InvalidRequest(f"'{name}' may have {MAX_NOTE} characters.", param=name)
    if request.max_tool_calls is not None and request.max_tool_calls < 0:
        message = f"'max_tool_calls' must be 0 or more, not {request.max_tool_calls}."
        raise InvalidRequest(message, param="max_tool_calls")
