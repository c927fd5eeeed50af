"""OpenAI's Responses: a request's parameters, read into the core's words, or refused by name.

Beyond OpenAI's own, requests may hold `presence_penalty`, `frequency_penalty`, `stop`, `seed`, `top_k`, `min_p`,
`repeat_penalty` and `ignore_eos`, as in Chat Completions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text.api.notes import check_metadata
from services.text.api.openai_neutral import refuse_others
from services.text.api.openai_sampling import SamplingBody, sampling_of
from services.text.api.responses.openai_items import items_of
from services.text.api.responses.openai_tools import choice_of, format_of, tools_of
from services.text.conversation import ReasoningEffort
from services.text.responses.response import Asked, ResponseRequest

MAX_NOTE = 512  # characters of what only comes back
MAX_TOP_LOGPROBS = 20
LOGPROBS = "message.output_text.logprobs"
# What belongs to items that never occur here, so that nothing of it is ever missing; and thoughts in encrypted form:
# they are never withheld, so they come, and can be sent back, in the open.
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

# What the core and the model's worker call parameters that have another name here.
CALLED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_obfuscation: bool | None = None  # known, so that it can be refused


class ReasoningOptions(msgspec.Struct):
    """How to think. All but the effort are known so that they can be refused."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: str | None = None
    mode: str | None = None


class TextOptions(msgspec.Struct):
    """How to speak."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class PromptCacheOptions(msgspec.Struct):
    """Options of the prompt cache that change the answer, known so that they can be refused. The others ask for no more
    than is done anyway: prompts are kept as long as there is room."""

    prewarm: bool | None = None
    comparison_response_id: str | None = None


class ResponseBody(SamplingBody, kw_only=True):
    """The body of POST /v1/responses. The last part is known, so that it can be refused."""

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
    """Reads and checks a request: as it came, and in the core's words.

    Raises:
        InvalidRequest: wrong types or values, named.
        Unsupported: a parameter, an item or a tool that cannot be honoured, named.
    """
    request = body.decode(raw, ResponseBody)
    _refuse_unsupported(request)
    if request.input is None and request.previous_response_id is None:
        raise InvalidRequest("Missing required parameter: 'input'.", param="input")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    _check_notes(request)
    items = items_of(request.input if request.input is not None else [])
    return request, ResponseRequest(model=request.model, input=items, asked=_asked(request))


def check_include(include: Iterable[str] | None) -> bool:
    """Whether probabilities are asked for. Raises Unsupported for what OpenAI does not know either."""
    wanted = set(include or ())
    for name in sorted(wanted - _NOTHING_TO_INCLUDE - {LOGPROBS}):
        raise Unsupported(f"'include': {name[:80]!r} is not supported by this server.", param="include")
    return LOGPROBS in wanted


def _asked(request: ResponseBody) -> Asked:
    tools = tools_of(request.tools or ())
    output, name = format_of(request.text.format if request.text else None)
    reasoning = request.reasoning or ReasoningOptions()
    top = request.top_logprobs
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"'top_logprobs' must be 0 to {MAX_TOP_LOGPROBS}, not {top}.", param="top_logprobs")
    return Asked(
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
    """A parameter with its neutral value asks for nothing and passes."""
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
            # Thoughts are told as they are. `auto` leaves it to us to make summaries, and we make none.
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
    """Bounds of what only comes back."""
    check_metadata(request.metadata or {})
    for name in ("prompt_cache_key", "safety_identifier", "user", "previous_response_id"):
        if len(getattr(request, name) or "") > MAX_NOTE:
            raise InvalidRequest(f"'{name}' may have {MAX_NOTE} characters.", param=name)
    if request.max_tool_calls is not None and request.max_tool_calls < 0:
        message = f"'max_tool_calls' must be 0 or more, not {request.max_tool_calls}."
        raise InvalidRequest(message, param="max_tool_calls")
