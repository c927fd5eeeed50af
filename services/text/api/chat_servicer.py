"""allm.text.v1.ChatService: protobuf around the chat core."""

from __future__ import annotations

from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc
from google.protobuf import timestamp_pb2

from services.rpc.call import Call, typed
from services.rpc.errors import InvalidRequest, Unsupported
from services.text import limits
from services.text.chat import Chat, Completion
from services.text.conversation import ChatRequest, Message, Role, ToolCall
from services.text.conversation import Usage as CoreUsage
from services.text.engine.messages import FinishReason
from services.text.engine.sampling import SamplingParams

AnyRequest = chat_service_pb2.CreateChatCompletionRequest | chat_service_pb2.StreamChatCompletionRequest

_ROLES: dict[int, Role] = {
    chat_pb2.CHAT_ROLE_SYSTEM: "system",
    chat_pb2.CHAT_ROLE_DEVELOPER: "developer",
    chat_pb2.CHAT_ROLE_USER: "user",
    chat_pb2.CHAT_ROLE_ASSISTANT: "assistant",
    chat_pb2.CHAT_ROLE_TOOL: "tool",
}
_FINISH: dict[FinishReason | None, chat_pb2.FinishReason.ValueType] = {
    None: chat_pb2.FINISH_REASON_UNSPECIFIED,
    "stop": chat_pb2.FINISH_REASON_STOP,
    "length": chat_pb2.FINISH_REASON_LENGTH,
}


class ChatServicer(chat_service_pb2_grpc.ChatServiceServicer):
    """The typed chat API."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    @typed()
    async def CreateChatCompletion(  # noqa: N802
        self, request: chat_service_pb2.CreateChatCompletionRequest, call: Call
    ) -> chat_service_pb2.CreateChatCompletionResponse:
        """Answers with the whole message at once."""
        chat_request = read_request(request)
        call.model = await self._chat.model_id(chat_request.model)
        async with self._chat.complete(chat_request, call.client) as completion:
            text = await completion.whole()
        message = chat_pb2.ChatMessage(
            role=chat_pb2.CHAT_ROLE_ASSISTANT, content=[chat_pb2.ContentPart(text=text)] if text else []
        )
        return chat_service_pb2.CreateChatCompletionResponse(
            id=completion.id,
            model=completion.model_id,
            create_time=_timestamp(completion),
            choices=[chat_pb2.ChatChoice(index=0, message=message, finish_reason=_FINISH[completion.finish])],
            usage=_usage(completion.usage),
        )

    @typed()
    async def StreamChatCompletion(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: chat_service_pb2.StreamChatCompletionRequest, call: Call
    ) -> None:
        """Answers token by token."""
        chat_request = read_request(request)
        call.model = await self._chat.model_id(chat_request.model)
        event = chat_service_pb2.StreamChatCompletionResponse
        async with self._chat.complete(chat_request, call.client) as completion:
            texts = await completion.ready()
            started = chat_service_pb2.ChatStarted(
                id=completion.id, model=completion.model_id, create_time=_timestamp(completion)
            )
            await call.send(event(started=started))
            while True:
                for text in texts:
                    await call.send(event(delta=chat_service_pb2.ChatDelta(index=0, text=text)))
                if completion.finish is not None:
                    break
                texts = await completion.ready()
            finished = chat_service_pb2.ChatFinished(
                index=0, finish_reason=_FINISH[completion.finish], usage=_usage(completion.usage)
            )
            await call.send(event(finished=finished))


def read_request(request: AnyRequest) -> ChatRequest:
    """Checks a request and puts it into the core's words. Raises InvalidRequest or Unsupported."""
    if request.tools:
        raise Unsupported("'tools' are not supported by this server yet.", param="tools")
    messages = tuple(_message(message, f"messages[{at}]") for at, message in enumerate(request.messages))
    chat = ChatRequest(model=request.model, messages=messages, sampling=_sampling(request.sampling))
    limits.check(chat)
    return chat


def _message(message: chat_pb2.ChatMessage, param: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"'{param}.role' is not set to a known role.", param=f"{param}.role")
    if not message.content and not message.tool_calls:
        raise InvalidRequest(f"'{param}.content' is missing.", param=f"{param}.content")
    if role == "tool" and not message.tool_call_id:
        raise InvalidRequest(f"'{param}.tool_call_id' is missing.", param=f"{param}.tool_call_id")
    for at, part in enumerate(message.content):
        if part.WhichOneof("part") is None:
            raise InvalidRequest(f"'{param}.content[{at}]' has no part set.", param=f"{param}.content[{at}]")
    return Message(
        role=role,
        content="".join(part.text or part.refusal for part in message.content),
        name=message.name,
        tool_calls=tuple(
            ToolCall(id=tool.id, name=tool.name, arguments=tool.arguments_json) for tool in message.tool_calls
        ),
        tool_call_id=message.tool_call_id,
    )


def _sampling(params: chat_pb2.SamplingParameters) -> SamplingParams:
    default = SamplingParams()
    return SamplingParams(
        temperature=params.temperature if params.HasField("temperature") else default.temperature,
        top_p=params.top_p if params.HasField("top_p") else default.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed if params.HasField("seed") else None,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repeat_penalty=params.repeat_penalty if params.HasField("repeat_penalty") else default.repeat_penalty,
        logit_bias=tuple(params.logit_bias.items()),
        stop=tuple(params.stop),
        max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        ignore_eos=params.ignore_eos,
    )


def _usage(usage: CoreUsage) -> chat_pb2.Usage:
    return chat_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )


def _timestamp(completion: Completion) -> timestamp_pb2.Timestamp:
    return timestamp_pb2.Timestamp(seconds=completion.created)
