"""The facade for POST /v1/messages and /v1/messages/count_tokens, in Anthropic's format."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from allm.anthropic.v1 import messages_service_pb2_grpc
from google.api import httpbody_pb2

from services.errors import ContextLengthExceeded
from services.rest.anthropic import facade
from services.rest.openai import sse
from services.rest.openai.body import called, json_body
from services.rpc.call import Call
from services.text.api.messages.anthropic import MessageWriter
from services.text.api.messages.anthropic_request import CreateBody, PromptBody, platform_tools, read_request
from services.text.api.other_parameters import leave_out_tools, unknown_parameters
from services.text.chat import Chat
from services.text.conversation import AnswerEvent, ChatRequest
from services.text.manager import TextModels
from services.text.running_answer import Completion

B = TypeVar("B", bound=PromptBody)
# Anthropic's clients give up after minutes without a byte, and a long prompt may take longer on a processor.


class MessagesFacade(messages_service_pb2_grpc.MessagesServiceServicer):
    """Anthropic's Messages endpoints."""

    def __init__(self, models: TextModels, chat: Chat, *, platform_tools_refused: bool = False) -> None:
        self._models = models
        self._chat = chat
        self._platform_tools_refused = platform_tools_refused

    @facade(operation="chat")
    async def CreateMessage(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Sends one JSON body, or server-sent events if the request sets `stream`."""
        body, chat_request, names = self._read(request, CreateBody, call)
        stored = await self._models.find(chat_request.model)
        call.model = stored.id
        with _in_its_words(names):
            async with self._chat.complete(stored, chat_request, call.client) as completion:
                call.ignore(_ignored(body, names, completion))
                await _answer(body, completion, call)
            call.facts["usage"] = completion.usage.facts

    @facade()
    async def CountTokens(  # noqa: N802
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Counts the tokens of a prompt."""
        _, chat_request, names = self._read(request, PromptBody, call)
        stored = await self._models.find(chat_request.model)
        call.model = stored.id
        with _in_its_words(names):
            count = await self._chat.count(stored, chat_request, call.client)
        return json_body({"input_tokens": count})

    def _read(
        self, request: httpbody_pb2.HttpBody, kind: type[B], call: Call
    ) -> tuple[B, ChatRequest, Mapping[str, str]]:
        """Reads a request, and tells the caller what has no effect."""
        body, chat_request, names = read_request(request, kind)
        call.ignore_unknown(unknown_parameters(request, kind))
        leave_out_tools(call, platform_tools(body.tools or ()), refused=self._platform_tools_refused)
        return body, chat_request, names


@contextmanager
def _in_its_words(names: Mapping[str, str]) -> Iterator[None]:
    """Names parameters in errors as Anthropic does, and begins that of a long prompt so that its clients know it."""
    with called(names):
        try:
            yield
        except ContextLengthExceeded as error:
            error.message = f"prompt is too long: {error.message}"
            raise


def _ignored(body: PromptBody, names: Mapping[str, str], completion: Completion) -> Iterator[str]:
    """Yields the parameters of the request that have no effect on the answer."""
    for name in completion.ignored:
        if name != "reasoning_effort":
            yield names.get(name, name)
        elif body.thinking:
            yield "thinking"
        elif body.output_config and body.output_config.effort:
            yield "output_config.effort"


async def _answer(body: CreateBody, completion: Completion, call: Call) -> None:
    """Sends the answer in the form that the caller wants. Events that are ready together share one HttpBody."""
    shown = not (body.thinking and body.thinking.display == "omitted")
    message_id = f"msg_{secrets.token_hex(12)}"
    writer = MessageWriter(message_id, completion.model_id, body.max_tokens, thoughts_shown=shown)
    while not completion.finished:
        events: list[dict[str, Any]] = []
        for _, event in await (_ready(completion, call) if body.stream else completion.ready()):
            events += writer.events(event, completion.usage)
        if body.stream and events:
            await call.send(sse.body(sse.event(event["type"], event) for event in events))
    if not body.stream:
        await call.send(json_body(writer.whole(completion.usage)))


async def _ready(completion: Completion, call: Call) -> list[tuple[int, AnswerEvent]]:
    """Waits for events; meanwhile the caller gets pings. After the first one, errors are events of the stream."""
    while not (events := await completion.ready_soon()) and not completion.finished:
        await call.send(sse.body((sse.event("ping", {"type": "ping"}),)))
    return events
