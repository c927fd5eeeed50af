"""The facade for POST /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/rerank and /v1/score."""

from __future__ import annotations

from typing import Any

from allm.openai.v1 import text_service_pb2_grpc
from google.api import httpbody_pb2

from services.rest.openai import sse
from services.rest.openai.body import called, json_body
from services.rest.openai.sse import facade
from services.rpc.call import Call
from services.text.api.chat.openai import ChunkWriter, completion_object
from services.text.api.chat.openai_request import ChatCompletionRequest, StreamOptions, read_request
from services.text.api.completions import Completions, create_completion
from services.text.api.embeddings import Embeddings, create_embedding
from services.text.api.other_parameters import unknown_parameters
from services.text.api.rerank import Reranking, create_rerank, create_score
from services.text.chat import Chat
from services.text.conversation import ChatRequest
from services.text.manager import TextModels
from services.text.running_answer import Completion


class TextFacade(text_service_pb2_grpc.TextServiceServicer):
    """The REST facade of the text service."""

    def __init__(
        self,
        models: TextModels,
        chat: Chat,
        completions: Completions,
        embeddings: Embeddings,
        reranking: Reranking,
    ) -> None:
        self._models = models
        self._chat = chat
        self._completions = completions
        self._embeddings = embeddings
        self._reranking = reranking

    @facade(operation="chat")
    async def CreateChatCompletion(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Sends one JSON body, or server-sent events if the request sets `stream`."""
        body, chat_request, names = read_request(request)
        call.ignore_unknown(unknown_parameters(request, type(body)))
        stored = await self._models.find(chat_request.model)
        call.model = stored.id
        with called(names):
            async with self._chat.complete(stored, chat_request, call.client) as completion:
                call.ignore(completion.ignored)
                await _answer(body, chat_request, completion, call)
            call.facts["usage"] = completion.usage.facts

    @facade(operation="text_completion")
    async def CreateCompletion(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Completes a text (the legacy endpoint)."""
        await create_completion(self._models, self._completions, request, call)

    @facade(operation="embeddings")
    async def CreateEmbedding(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Computes embedding vectors of the inputs."""
        await create_embedding(self._models, self._embeddings, request, call)

    @facade(operation="rerank")
    async def CreateRerank(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Ranks documents by their relevance to a query."""
        await create_rerank(self._models, self._reranking, request, call)

    @facade(operation="rerank")
    async def CreateScore(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Scores pairs of texts."""
        await create_score(self._models, self._reranking, request, call)


async def _answer(body: ChatCompletionRequest, request: ChatRequest, completion: Completion, call: Call) -> None:
    """Sends the answer in the form that the caller wants."""
    head = {"id": completion.id, "created": completion.created, "model": completion.model_id}
    logprobs = request.logprobs is not None
    if body.stream:
        options = body.stream_options or StreamOptions()
        chunks = ChunkWriter(
            head,
            include_usage=bool(options.include_usage),
            logprobs=logprobs,
            legacy=body.legacy,
            obfuscated=bool(options.include_obfuscation),
        )
        await _stream(completion, chunks, bool(options.include_usage), call)
        return
    await completion.whole()
    answers = [choice.content for choice in completion.choices]
    await call.send(
        json_body(completion_object(head, answers, completion.usage, logprobs=logprobs, legacy=body.legacy))
    )


async def _stream(completion: Completion, chunks: ChunkWriter, include_usage: bool, call: Call) -> None:
    """Sends events that are ready together in one HttpBody, each as a separate server-sent event."""
    begun: set[int] = set()
    while not completion.finished:
        events: list[dict[str, Any]] = []
        for index, event in await completion.ready():
            if index not in begun:
                # Not earlier: until the first token, the HTTP status can still report an error.
                begun.add(index)
                events.append(chunks.role(index))
            events.append(chunks.event(index, event))
        if completion.finished and include_usage:
            events.append(chunks.usage(completion.usage))
        end = (sse.DONE,) if completion.finished else ()
        await call.send(sse.body((*map(sse.data, events), *end)))
