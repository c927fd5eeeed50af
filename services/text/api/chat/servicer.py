"""The servicer of allm.text.v1.ChatService, and chat results as its messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, get_args

import msgspec
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc, response_pb2
from google.protobuf import timestamp_pb2

from services.errors import InvalidRequest
from services.rest.openai.body import called
from services.rpc.call import Call, typed
from services.text import limits
from services.text.chat import Chat
from services.text.conversation import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    ChatRequest,
    Detail,
    FinishReason,
    Message,
    OutputFormat,
    Picture,
    ReasoningDelta,
    ReasoningEffort,
    Role,
    TextDelta,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
)
from services.text.engine.messages import TokenLogprob
from services.text.engine.sampling import SamplingParams
from services.text.manager import TextModels
from services.text.picture_urls import check_url
from services.text.running_answer import AnswerContent

AnyRequest = chat_service_pb2.CreateChatCompletionRequest | chat_service_pb2.StreamChatCompletionRequest

VARIABLES = "template_variables_json"
_ROLES: dict[int, Role] = {chat_pb2.ChatRole.Value(f"CHAT_ROLE_{role.upper()}"): role for role in get_args(Role)}
_DETAILS: dict[int, Detail] = {
    chat_pb2.IMAGE_DETAIL_UNSPECIFIED: "auto",
    **{chat_pb2.ImageDetail.Value(f"IMAGE_DETAIL_{detail.upper()}"): detail for detail in get_args(Detail)},
}
_MODES: dict[int, Literal["auto", "none", "required"]] = {
    chat_pb2.ToolChoice.MODE_UNSPECIFIED: "auto",
    chat_pb2.ToolChoice.MODE_AUTO: "auto",
    chat_pb2.ToolChoice.MODE_NONE: "none",
    chat_pb2.ToolChoice.MODE_REQUIRED: "required",
}
_FINISH: dict[FinishReason | None, chat_pb2.FinishReason.ValueType] = {
    None: chat_pb2.FINISH_REASON_UNSPECIFIED,
    **{reason: chat_pb2.FinishReason.Value(f"FINISH_REASON_{reason.upper()}") for reason in get_args(FinishReason)},
}


class ChatServicer(chat_service_pb2_grpc.ChatServiceServicer):
    """The typed chat API."""

    def __init__(self, models: TextModels, chat: Chat) -> None:
        self._models = models
        self._chat = chat

    @typed(operation="chat")
    async def CreateChatCompletion(  # noqa: N802
        self, request: chat_service_pb2.CreateChatCompletionRequest, call: Call
    ) -> chat_service_pb2.CreateChatCompletionResponse:
        """Returns the complete answer."""
        chat_request = read_request(request)
        stored = await self._models.find(chat_request.model)
        call.model = stored.id
        async with self._chat.complete(stored, chat_request, call.client) as completion:
            await completion.whole()
        call.facts["usage"] = completion.usage.facts
        return chat_service_pb2.CreateChatCompletionResponse(
            id=completion.id,
            model=completion.model_id,
            create_time=timestamp(completion.created),
            choices=[choice_message(index, choice.content) for index, choice in enumerate(completion.choices)],
            usage=usage_message(completion.usage),
        )

    @typed(operation="chat")
    async def StreamChatCompletion(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: chat_service_pb2.StreamChatCompletionRequest, call: Call
    ) -> None:
        """Streams the answer token by token."""
        chat_request = read_request(request)
        stored = await self._models.find(chat_request.model)
        call.model = stored.id
        response = chat_service_pb2.StreamChatCompletionResponse
        async with self._chat.complete(stored, chat_request, call.client) as completion:
            events = await completion.ready()
            started = chat_service_pb2.ChatStarted(
                id=completion.id, model=completion.model_id, create_time=timestamp(completion.created)
            )
            await call.send(response(started=started))
            while events:
                *earlier, last = events
                for index, event in earlier:
                    await call.send(event_message(index, event, None))
                # The last ready event may end the last choice; it then carries the usage of all choices.
                index, event = last
                await call.send(event_message(index, event, completion.usage if completion.finished else None))
                events = await completion.ready()
            call.facts["usage"] = completion.usage.facts


def read_request(request: AnyRequest) -> ChatRequest:
    """Checks a request and converts it to the core's type. Raises InvalidRequest or Unsupported."""
    limits.check_count("messages", len(request.messages))
    messages = tuple(_message(message, f"messages[{at}]") for at, message in enumerate(request.messages))
    choices = request.choices if request.HasField("choices") else 1
    chat = read_settings(request.model, messages, request, choices)
    return dataclasses.replace(chat, prediction=request.prediction)


def read_settings(
    model: str, messages: tuple[Message, ...], given: AnyRequest | response_pb2.ResponseSettings, choices: int = 1
) -> ChatRequest:
    """Checks the settings that chats and responses share. Raises as `read_request`."""
    tools = tuple(_tool(tool, f"tools[{at}]") for at, tool in enumerate(given.tools))
    chat = ChatRequest(
        model=model,
        messages=messages,
        sampling=_sampling(given.sampling),
        tools=tools,
        tool_choice=_tool_choice(given.tool_choice, tools),
        parallel_tool_calls=given.parallel_tool_calls if given.HasField("parallel_tool_calls") else True,
        output=_output(given.output_format),
        choices=choices,
        logprobs=given.top_logprobs if given.HasField("top_logprobs") else None,
        reasoning_effort=_effort(given.reasoning_effort),
        cache_key=given.prompt_cache_key,
        template_variables=_json(given.template_variables_json or "{}", VARIABLES),
    )
    with called({"chat_template_kwargs": VARIABLES}):
        limits.check(chat, {"n": "choices"})
    return chat


def _message(message: chat_pb2.ChatMessage, param: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"'{param}.role' is not set to a known role.", param=f"{param}.role")
    if not message.content and not message.tool_calls:
        raise InvalidRequest(f"'{param}.content' is missing.", param=f"{param}.content")
    if role == "tool" and not message.tool_call_id:
        raise InvalidRequest(f"'{param}.tool_call_id' is missing.", param=f"{param}.tool_call_id")
    text, pictures = "", []
    for at, part in enumerate(message.content):
        where = f"{param}.content[{at}]"
        if part.WhichOneof("part") is None:
            raise InvalidRequest(f"'{where}' has no part set.", param=where)
        text += part.text or part.refusal
        if part.WhichOneof("part") == "image":
            pictures.append(_picture(part.image, f"{where}.image", len(text)))
    return Message(
        role=role,
        content=text,
        pictures=tuple(pictures),
        name=message.name,
        tool_calls=tuple(
            ToolCall(id=tool.id, name=tool.name, arguments=tool.arguments_json) for tool in message.tool_calls
        ),
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
    )


def _picture(image: chat_pb2.ImagePart, param: str, at: int) -> Picture:
    detail = read_detail(image, param)
    return Picture(at=at, param=f"{param}.{image.WhichOneof('source')}", data=image.data, url=image.url, detail=detail)


def read_detail(image: chat_pb2.ImagePart, param: str) -> Detail:
    """Checks a picture and returns its detail.

    Raises:
        InvalidRequest: it has no source, a malformed address, or an unknown detail.
    """
    if not (image.data or image.url):
        raise InvalidRequest(f"'{param}' has neither 'data' nor 'url'.", param=param)
    if image.url:
        check_url(image.url, f"{param}.url")
    detail = _DETAILS.get(image.detail)
    if detail is None:
        raise InvalidRequest(f"'{param}.detail' has the unknown value {image.detail}.", param=f"{param}.detail")
    return detail


def _tool(tool: chat_pb2.Tool, param: str) -> Tool:
    parameters = _json(tool.parameters_json, f"{param}.parameters_json") if tool.parameters_json else None
    return Tool(name=tool.name, description=tool.description, parameters=parameters, strict=tool.strict)


def _tool_choice(choice: chat_pb2.ToolChoice, tools: tuple[Tool, ...]) -> ToolChoice:
    mode = _MODES.get(choice.mode)
    if mode is None:
        raise InvalidRequest(f"'tool_choice.mode' has the unknown value {choice.mode}.", param="tool_choice")
    return limits.checked_choice(mode, choice.names, tools)


def _output(output: chat_pb2.OutputFormat) -> OutputFormat:
    kind = output.WhichOneof("format")
    if kind == "json_schema":
        return OutputFormat(kind="json_schema", schema=_json(output.json_schema, "output_format.json_schema"))
    if kind == "json_object":
        return OutputFormat(kind="json_object" if output.json_object else "text")
    if kind == "choice":
        return OutputFormat(kind="choice", choices=tuple(output.choice.texts))
    if kind == "regex":
        return OutputFormat(kind="regex", source=output.regex)
    if kind == "lark_grammar":
        return OutputFormat(kind="lark", source=output.lark_grammar)
    return OutputFormat(kind="gbnf", source=output.gbnf_grammar) if kind == "gbnf_grammar" else OutputFormat()


def _json(text: str, param: str) -> dict[str, Any]:
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"'{param}' is not valid JSON: {error}", param=param) from error
    if not isinstance(schema, dict):
        raise InvalidRequest(f"'{param}' must be a JSON object.", param=param)
    return schema


def _effort(text: str) -> ReasoningEffort:
    for known in get_args(ReasoningEffort):
        if text == known:
            effort: ReasoningEffort = known
            return effort
    allowed = ", ".join(filter(None, get_args(ReasoningEffort)))
    raise InvalidRequest(f"'reasoning_effort' must be one of {allowed}, not {text[:40]!r}.", param="reasoning_effort")


def _sampling(params: chat_pb2.SamplingParameters) -> SamplingParams:
    """Converts the parameters, which have the same names. Absent ones get the core's defaults."""
    given: dict[str, Any] = {field.name: value for field, value in params.ListFields()}
    lists = {"stop": tuple(params.stop), "stop_token_ids": tuple(params.stop_token_ids)}
    return SamplingParams(**given | lists | {"logit_bias": tuple(params.logit_bias.items())})


def choice_message(index: int, answer: AnswerContent) -> chat_pb2.ChatChoice:
    """Converts a complete answer."""
    message = chat_pb2.ChatMessage(
        role=chat_pb2.CHAT_ROLE_ASSISTANT,
        content=[chat_pb2.ContentPart(text=answer.text)] if answer.text else [],
        reasoning=answer.reasoning,
        tool_calls=[
            chat_pb2.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments) for call in answer.calls
        ],
    )
    return chat_pb2.ChatChoice(
        index=index, message=message, finish_reason=_FINISH[answer.finish], logprobs=logprob_messages(answer.logprobs)
    )


def event_message(index: int, event: AnswerEvent, usage: Usage | None) -> chat_service_pb2.StreamChatCompletionResponse:
    """Converts one event of a stream; `usage` is set for the event that ends the last choice."""
    response = chat_service_pb2.StreamChatCompletionResponse
    delta = chat_service_pb2.ChatDelta(index=index)
    if isinstance(event, TextDelta):
        delta.text = event.text
        delta.logprobs.extend(logprob_messages(event.logprobs))
    elif isinstance(event, ReasoningDelta):
        delta.reasoning = event.text
    elif isinstance(event, CallStarted):
        delta.tool_call.index, delta.tool_call.id, delta.tool_call.name = event.index, event.id, event.name
    elif isinstance(event, CallArguments):
        delta.tool_call.index, delta.tool_call.arguments_json = event.index, event.text
    else:
        total = usage_message(usage) if usage else None
        reason = _FINISH[event.reason]
        return response(finished=chat_service_pb2.ChatFinished(index=index, finish_reason=reason, usage=total))
    return response(delta=delta)


def usage_message(usage: Usage) -> chat_pb2.Usage:
    """Converts the token usage of a request."""
    return chat_pb2.Usage(**dataclasses.asdict(usage))


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """Converts seconds since 1970."""
    return timestamp_pb2.Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))


def logprob_messages(tokens: Iterable[TokenLogprob]) -> list[chat_pb2.TokenLogprob]:
    """Converts the log probabilities of tokens."""
    return [
        chat_pb2.TokenLogprob(
            token=token.piece,
            logprob=token.logprob,
            top=[chat_pb2.TokenAlternative(token=piece, logprob=logprob) for piece, logprob in token.top],
        )
        for token in tokens
    ]
