"""POST /v1/chat/completions: OpenAI's bytes around the chat core."""

from __future__ import annotations

from typing import Any

from allm.openai.v1 import text_service_pb2_grpc
from google.api import httpbody_pb2

from services.rpc.call import Call, facade
from services.rpc.openai import sse
from services.rpc.openai.body import json_body
from services.text.api.openai_chat import ChunkWriter, completion_object, read_request
from services.text.chat import Chat, Completion


class TextFacade(text_service_pb2_grpc.TextServiceServicer):
    """The REST facade of the text service."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    @facade()
    async def CreateChatCompletion(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """One JSON body, or server-sent events when the request says `stream`."""
        asked, chat_request = read_request(request)
        call.model = await self._chat.model_id(chat_request.model)
        async with self._chat.complete(chat_request, call.client) as completion:
            head = {"id": completion.id, "created": completion.created, "model": completion.model_id}
            if asked.stream:
                include_usage = bool(asked.stream_options and asked.stream_options.include_usage)
                await _stream(completion, ChunkWriter(head, include_usage), include_usage, call)
            else:
                text = await completion.whole()
                await call.send(json_body(completion_object(head, text, completion.finish, completion.usage)))
            call.facts["usage"] = _facts(completion)


async def _stream(completion: Completion, chunks: ChunkWriter, include_usage: bool, call: Call) -> None:
    """Texts that are ready together share one HttpBody; each is an event of its own."""
    events: list[dict[str, Any]] = []
    first = True
    while completion.finish is None:
        texts = await completion.ready()
        if first:
            # Only now: until the first token an error can still be told by the HTTP status.
            events.append(chunks.role())
            first = False
        events += [chunks.text(text) for text in texts]
        if completion.finish is None:
            await call.send(sse.body(map(sse.data, events)))
            events = []
    events.append(chunks.finish(completion.finish))
    if include_usage:
        events.append(chunks.usage(completion.usage))
    await call.send(sse.body((*map(sse.data, events), sse.DONE)))


def _facts(completion: Completion) -> dict[str, int]:
    usage = completion.usage
    return {"prompt": usage.prompt_tokens, "cached": usage.cached_tokens, "completion": usage.completion_tokens}
