"""Bounds of request parameters, shared by both wire formats. Errors name the parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from services.errors import InvalidRequest
from services.text.conversation import ChatRequest, Message, OutputFormat, Tool, ToolChoice
from services.text.engine.sampling import SamplingParams
from services.text.schema import MAX_BYTES, OUTPUT, check_size

MAX_MESSAGES = 16_384
MAX_PICTURES = 100
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_STOP_TOKENS = 256
MAX_BIASES = 1_024
MAX_TOKEN_ID = 2**31 - 1
MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**64 - 1
MAX_TOOLS = 128
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
MAX_CACHE_KEY = 512  # characters
MAX_ANSWERS = 1_024  # to choose from
MAX_ANSWER_LENGTH = 4_096
MAX_VARIABLES = 32  # of the chat template
MAX_VARIABLE_DEPTH = 8
MAX_VARIABLES_BYTES = 16 * 1024
MAX_SCHEMAS_BYTES = 1024 * 1024  # of all tools together
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# The variables of a chat template that are made from the rest of the request, and its functions.
_OWN_VARIABLES = frozenset(
    ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now")
)
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# parameter -> (lowest, highest)
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, MAX_TOKENS),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repeat_penalty": (0, 100),
}
_ABOVE_ZERO = ("top_p", "repeat_penalty")


def check(request: ChatRequest, called: Mapping[str, str] | None = None) -> None:
    """Raises InvalidRequest for the first value that is out of bounds.

    `called`: the caller's names of parameters, where they differ from the names here.
    """
    if not request.model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    if not request.messages:
        raise InvalidRequest("'messages' is empty: a conversation needs at least one message.", param="messages")
    check_count("messages", len(request.messages))
    _check_pictures(request.messages)
    check_sampling(request.sampling, called)
    _check_tools(request.tools)
    if not 1 <= request.choices <= MAX_CHOICES:
        param = (called or {}).get("n", "n")
        raise InvalidRequest(f"'{param}' must be 1 to {MAX_CHOICES}, not {request.choices}.", param=param)
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_TOP_LOGPROBS:
        message = f"'top_logprobs' must be 0 to {MAX_TOP_LOGPROBS}, not {request.logprobs}."
        raise InvalidRequest(message, param="top_logprobs")
    if len(request.cache_key) > MAX_CACHE_KEY:
        raise InvalidRequest(f"'prompt_cache_key' is limited to {MAX_CACHE_KEY} characters.", param="prompt_cache_key")
    check_output(request.output)
    _check_variables(request.template_variables)


def check_output(output: OutputFormat) -> None:
    """Checks the size of an answer's format. Raises as `check`."""
    if output.schema is not None:
        check_size(output.schema, OUTPUT)
    if output.kind == "choice":
        if not 1 <= len(output.choices) <= MAX_ANSWERS:
            message = f"'{OUTPUT}' must have 1 to {MAX_ANSWERS} choices, not {len(output.choices)}."
            raise InvalidRequest(message, param=OUTPUT)
        for choice in output.choices:
            if not 1 <= len(choice) <= MAX_ANSWER_LENGTH:
                message = f"'{OUTPUT}': a choice must have 1 to {MAX_ANSWER_LENGTH} characters, not {len(choice)}."
                raise InvalidRequest(message, param=OUTPUT)
    elif output.kind in ("regex", "lark", "gbnf") and not 1 <= len(output.source) <= MAX_BYTES:
        message = f"'{OUTPUT}' must have 1 to {MAX_BYTES} characters, not {len(output.source)}."
        raise InvalidRequest(message, param=OUTPUT)


def _check_variables(variables: Mapping[str, Any]) -> None:
    param = "chat_template_kwargs"
    if len(variables) > MAX_VARIABLES:
        raise _too_many(param, len(variables), MAX_VARIABLES)
    for name in variables:
        if not _VARIABLE_NAME.fullmatch(name) or name in _OWN_VARIABLES:
            raise InvalidRequest(f"'{param}' cannot set {name[:64]!r}.", param=param)
    check_size(variables, param, MAX_VARIABLES_BYTES, MAX_VARIABLE_DEPTH)


def check_count(name: str, count: int) -> None:
    """Raises InvalidRequest if a conversation has too many messages. Call it before they are converted."""
    if count > MAX_MESSAGES:
        raise _too_many(name, count, MAX_MESSAGES)


def _check_pictures(messages: Sequence[Message]) -> None:
    count = sum(len(message.pictures) for message in messages)
    if count > MAX_PICTURES:
        reason = f"'messages' has {count} pictures; at most {MAX_PICTURES} are allowed."
        raise InvalidRequest(reason, param="messages")
    for message in messages:
        if message.pictures and message.role not in ("user", "tool"):
            param = message.pictures[0].param
            reason = f"pictures are allowed in messages of the roles 'user' and 'tool', not of {message.role!r}."
            raise InvalidRequest(f"'{param}': {reason}", param=param)


def _check_tools(tools: tuple[Tool, ...]) -> None:
    if len(tools) > MAX_TOOLS:
        raise _too_many("tools", len(tools), MAX_TOOLS)
    seen: set[str] = set()
    size = 0
    for at, tool in enumerate(tools):
        param = f"tools[{at}]"
        if not _TOOL_NAME.fullmatch(tool.name):
            message = f"'{param}' is named {tool.name[:80]!r}; allowed are 1 to 64 letters, digits, '_', '-' and '.'."
            raise InvalidRequest(message, param=param)
        if tool.name in seen:
            raise InvalidRequest(f"'{param}': {tool.name!r} appears twice.", param=param)
        seen.add(tool.name)
        if tool.parameters is not None:
            size += check_size(tool.parameters, f"{param}.parameters")
            if size > MAX_SCHEMAS_BYTES:
                message = f"The schemas of 'tools' have more than {MAX_SCHEMAS_BYTES} bytes in all."
                raise InvalidRequest(message, param="tools")


def checked_choice(
    mode: Literal["auto", "none", "required"], names: Sequence[str], tools: Sequence[Tool]
) -> ToolChoice:
    """Returns a tool choice. Raises InvalidRequest if it names an unknown tool, or requires one of no tools."""
    known = {tool.name for tool in tools}
    for name in names:
        if name not in known:
            message = f"'tool_choice' names {name[:80]!r}, which is not among 'tools'."
            raise InvalidRequest(message, param="tool_choice")
    if mode == "required" and not tools:
        raise InvalidRequest("'tool_choice' requires a tool, but 'tools' is empty.", param="tool_choice")
    return ToolChoice(mode=mode, names=frozenset(names))


def check_sampling(params: SamplingParams, called: Mapping[str, str] | None = None) -> None:
    """Checks the sampling parameters. Raises as `check`."""
    called = called or {}
    for name, (low, high) in _RANGES.items():
        value = getattr(params, name)
        above = name in _ABOVE_ZERO
        if not low <= value <= high or (above and value == low):  # NaN is in no range
            lowest = f"above {low}" if above else f"{low}"
            param = called.get(name, name)
            raise InvalidRequest(f"'{param}' must be {lowest} to {high}, not {value}.", param=param)
    if params.seed is not None and not 0 <= params.seed <= MAX_SEED:
        raise InvalidRequest(f"'seed' must be 0 to {MAX_SEED}, not {params.seed}.", param="seed")
    _check_stops(params.stop)
    _check_stop_tokens(params.stop_token_ids)
    _check_biases(params.logit_bias)
    if params.max_tokens is not None and not 1 <= params.max_tokens <= MAX_TOKENS:
        param = called.get("max_tokens", "max_tokens")
        raise InvalidRequest(f"'{param}' must be 1 to {MAX_TOKENS}, not {params.max_tokens}.", param=param)
    most = MAX_TOKENS if params.max_tokens is None else params.max_tokens
    if not 0 <= params.min_tokens <= most:
        raise InvalidRequest(f"'min_tokens' must be 0 to {most}, not {params.min_tokens}.", param="min_tokens")


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > MAX_STOPS:
        raise _too_many("stop", len(stops), MAX_STOPS)
    for stop in stops:
        if not stop or len(stop) > MAX_STOP_LENGTH:
            raise InvalidRequest(
                f"'stop' must contain strings of 1 to {MAX_STOP_LENGTH} characters, not of {len(stop)}.", param="stop"
            )


def _check_stop_tokens(tokens: tuple[int, ...]) -> None:
    if len(tokens) > MAX_STOP_TOKENS:
        raise _too_many("stop_token_ids", len(tokens), MAX_STOP_TOKENS)
    for token in tokens:
        if not 0 <= token <= MAX_TOKEN_ID:
            message = f"'stop_token_ids' contains token {token}, which no model has."
            raise InvalidRequest(message, param="stop_token_ids")


def _check_biases(biases: tuple[tuple[int, float], ...]) -> None:
    if len(biases) > MAX_BIASES:
        raise _too_many("logit_bias", len(biases), MAX_BIASES)
    for token, bias in biases:
        if not 0 <= token <= MAX_TOKEN_ID:
            raise InvalidRequest(f"'logit_bias' contains token {token}, which no model has.", param="logit_bias")
        if not -100 <= bias <= 100:
            message = f"'logit_bias' of token {token} must be -100 to 100, not {bias:g}."
            raise InvalidRequest(message, param="logit_bias")


def _too_many(name: str, count: int, most: int) -> InvalidRequest:
    return InvalidRequest(f"'{name}' has {count} entries; at most {most} are allowed.", param=name)
