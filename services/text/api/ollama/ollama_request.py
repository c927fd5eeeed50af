"""Ollama's requests, decoded from JSON, checked, and converted to the core's types.

Reference: https://docs.ollama.com/api. Null and unknown fields of messages and tools are accepted, because clients send
back what they got. A parameter of Ollama's that changes the prompt in a way that allm does not support is refused by
name; options without effect are named in the response.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest, Unsupported
from services.rest.openai import body
from services.text import limits
from services.text.api import embeddings
from services.text.api.completions import CompletionRequest
from services.text.api.embeddings import EmbeddingRequest
from services.text.api.ollama.ollama_options import NAMES, Format, Think, effort_of, output_of, sampling_of
from services.text.api.openai_sampling import refuse_others
from services.text.conversation import ChatRequest, Message, Picture, Tool, ToolCall
from services.text.picture_urls import picture_of

_DUMMY = Message(role="user", content="")


class FunctionCall(msgspec.Struct):
    """A function call of the assistant; its arguments are an object, or JSON text as in OpenAI's API."""

    name: str
    arguments: dict[str, Any] | str | None = None


class MessageToolCall(msgspec.Struct):
    """A tool call in an assistant message."""

    function: FunctionCall
    id: str | None = None


class MessageBody(msgspec.Struct):
    """One message of the request."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None  # files in base64
    tool_calls: list[MessageToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class FunctionDefinition(msgspec.Struct):
    """A function: its name, its description, and the JSON Schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(msgspec.Struct):
    """A function tool."""

    function: FunctionDefinition
    type: Literal["function"] | None = None


class ModelBody(msgspec.Struct, kw_only=True):
    """The parameters of every request to a model."""

    model: str
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


class AnswerBody(ModelBody, kw_only=True):
    """The parameters that /api/chat and /api/generate share. Of the last group, none has an effect, or is rejected."""

    stream: bool | None = None
    format: Format | None = None
    think: Think | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    template: str | None = None
    truncate: bool | None = None  # the conversation's first messages, where it is too long
    shift: bool | None = None  # the context, where the answer is too long


class ChatBody(AnswerBody, kw_only=True):
    """The body of POST /api/chat."""

    messages: list[MessageBody] | None = None
    tools: list[ToolBody] | None = None


class GenerateBody(AnswerBody, kw_only=True):
    """The body of POST /api/generate. The last parameter is declared only to be rejected."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: list[str] | None = None  # files in base64
    raw: bool | None = None

    context: list[int] | None = None


class EmbedBody(ModelBody, kw_only=True):
    """The body of POST /api/embed."""

    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None


class EmbedPromptBody(ModelBody, kw_only=True):
    """The body of POST /api/embeddings."""

    prompt: str | None = None


def read_chat(raw: httpbody_pb2.HttpBody) -> tuple[ChatBody, ChatRequest | None]:
    """Reads and checks a request. Returns the decoded body and the core's request; None: it only loads the model.

    Raises:
        InvalidRequest: a type or value is wrong; the error names the parameter.
        Unsupported: a parameter or content is not supported; the error names it.
    """
    given = body.decode(raw, ChatBody, {"messages": limits.MAX_MESSAGES})
    _refuse_unsupported(given)
    chat = _chat_request(given, _messages(given.messages or ()), _tools(given.tools or ()))
    return given, chat if given.messages else None


def read_generate(raw: httpbody_pb2.HttpBody) -> tuple[GenerateBody, ChatRequest | CompletionRequest | None]:
    """Reads and checks a request: a conversation, or with `raw` or `suffix` a text to continue.

    Raises as `read_chat`.
    """
    given = body.decode(raw, GenerateBody)
    _refuse_unsupported(given)
    refuse_others((("context", given.context, ([],)),))
    if given.raw and given.system:
        raise InvalidRequest("'raw' and 'system' are mutually exclusive.", param="system")
    if given.raw or given.suffix:
        if given.images:
            raise Unsupported("'images' is not supported with 'raw' or 'suffix'.", param="images")
        request = _completion_request(given)
        return given, request if given.prompt else None
    messages = [Message(role="system", content=given.system)] if given.system else []
    question = Message(role="user", content=given.prompt or "", pictures=_pictures(given.images, "images"))
    chat = _chat_request(given, (*messages, question), ())
    return given, chat if given.prompt or given.images else None


def read_embed(raw: httpbody_pb2.HttpBody) -> tuple[EmbedBody, EmbeddingRequest | None]:
    """Reads and checks a request; None: it only loads the model. Raises InvalidRequest, naming the parameter."""
    given = body.decode(raw, EmbedBody)
    _require_model(given.model)
    sampling_of(given.options)  # options of sampling are checked, and have no effect
    if not given.input:
        return given, None
    inputs, param = ((given.input,), "input") if isinstance(given.input, str) else (tuple(given.input), "input[]")
    request = EmbeddingRequest(
        model=given.model,
        inputs=inputs,
        dimensions=given.dimensions or None,
        param=param,
        truncate=given.truncate is not False,
    )
    embeddings.check(request)
    return given, request


def read_embed_prompt(raw: httpbody_pb2.HttpBody) -> tuple[EmbedPromptBody, EmbeddingRequest | None]:
    """Reads and checks a request of the older interface. Returns and raises as `read_embed`."""
    given = body.decode(raw, EmbedPromptBody)
    _require_model(given.model)
    sampling_of(given.options)
    if not given.prompt:
        return given, None
    request = EmbeddingRequest(model=given.model, inputs=(given.prompt,), param="prompt", truncate=True)
    embeddings.check(request)
    return given, request


def _require_model(model: str) -> None:
    if not model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")


def _refuse_unsupported(given: AnswerBody) -> None:
    _require_model(given.model)
    if given.template:
        why = "'template' is not supported: a model's own template is used; send 'raw' with a whole prompt instead."
        raise Unsupported(why, param="template")
    if given.top_logprobs and not given.logprobs:
        raise InvalidRequest("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")


def _chat_request(given: AnswerBody, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> ChatRequest:
    request = ChatRequest(
        model=given.model,
        messages=messages or (_DUMMY,),  # a request without messages is checked, too
        sampling=sampling_of(given.options),
        tools=tools,
        output=output_of(given.format),
        logprobs=_logprobs(given),
        reasoning_effort=effort_of(given.think),
        effort_required=given.think is not False,
        room_required=False,
    )
    with body.called(_names(len(tools))):
        limits.check(request)
    return request


def _names(tools: int) -> Mapping[str, str]:
    """Returns Ollama's names of parameters that have others in the core."""
    schemas = {f"tools[{at}].parameters": f"tools[{at}].function.parameters" for at in range(tools)}
    return {**schemas, **NAMES}


def names_of(given: AnswerBody) -> Mapping[str, str]:
    """Returns the caller's names of parameters that have others in the core, by the core's name."""
    return _names(len(given.tools or ()) if isinstance(given, ChatBody) else 0)


def _completion_request(given: GenerateBody) -> CompletionRequest:
    sampling, output = sampling_of(given.options), output_of(given.format)
    with body.called(NAMES):
        limits.check_sampling(sampling)
        limits.check_output(output)
    logprobs = _logprobs(given)
    if logprobs is not None and not 0 <= logprobs <= limits.MAX_TOP_LOGPROBS:
        message = f"'top_logprobs' must be 0 to {limits.MAX_TOP_LOGPROBS}, not {logprobs}."
        raise InvalidRequest(message, param="top_logprobs")
    return CompletionRequest(
        model=given.model,
        prompts=(given.prompt or "",),
        sampling=sampling,
        logprobs=logprobs,
        suffix=given.suffix or "",
        room_required=False,
        output=output,
    )


def _logprobs(given: AnswerBody) -> int | None:
    return (given.top_logprobs or 0) if given.logprobs else None


def _tools(given: Sequence[ToolBody]) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            name=tool.function.name,
            description=tool.function.description or "",
            parameters=tool.function.parameters,
        )
        for tool in given
    )


def _messages(given: Sequence[MessageBody]) -> tuple[Message, ...]:
    """Converts the messages. Results without an id belong to the calls before them: by name, or else in order."""
    found: list[Message] = []
    pending: list[ToolCall] = []  # calls without a result
    for at, message in enumerate(given):
        calls = _calls(message.tool_calls or (), at)
        if calls:
            pending = list(calls)
        call = _answered(message, pending) if message.role == "tool" else None
        name = message.tool_name or (call.name if call else "")
        call_id = message.tool_call_id or (call.id if call else f"call_{at}")
        found.append(
            Message(
                role=message.role,
                content=message.content or "",
                pictures=_pictures(message.images, f"messages[{at}].images"),
                name=name if message.role == "tool" else "",
                reasoning=message.thinking or "",
                tool_calls=calls,
                tool_call_id=call_id if message.role == "tool" else "",
            )
        )
    return tuple(found)


def _pictures(given: Sequence[str] | None, param: str) -> tuple[Picture, ...]:
    """Converts a message's pictures, which come before its text, as in Ollama. Data URLs are accepted, too."""
    found = []
    for at, file in enumerate(given or ()):
        url = file if file.startswith("data:") else f"data:;base64,{file}"
        found.append(picture_of(url, f"{param}[{at}]", 0))
    return tuple(found)


def _answered(result: MessageBody, pending: list[ToolCall]) -> ToolCall | None:
    """Returns the call that a result belongs to, and removes it from the pending ones."""
    for call in pending:
        by_id = result.tool_call_id and call.id == result.tool_call_id
        by_name = not result.tool_call_id and result.tool_name in (None, "", call.name)
        if by_id or by_name:
            pending.remove(call)
            return call
    return None


def _calls(given: Sequence[MessageToolCall], at: int) -> tuple[ToolCall, ...]:
    calls = []
    for number, call in enumerate(given):
        arguments = call.function.arguments
        if not isinstance(arguments, str):
            param = f"messages[{at}].tool_calls[{number}].function.arguments"
            try:
                arguments = json.dumps(arguments or {}, ensure_ascii=False)
            except RecursionError as error:
                raise InvalidRequest(f"'{param}' is nested too deeply.", param=param) from error
        calls.append(ToolCall(id=call.id or f"call_{at}_{number}", name=call.function.name, arguments=arguments))
    return tuple(calls)
