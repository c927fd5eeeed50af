"""The facade for Ollama's POST /api/chat, /api/generate, /api/embed and /api/embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import msgspec
from allm.ollama.v1 import text_service_pb2_grpc
from google.api import httpbody_pb2

from services.models.hub.names import known_name
from services.models.store import StoredModel
from services.rest import ollama
from services.rest.ollama import facade
from services.rest.openai.body import JSON, called, json_body, send_body
from services.rpc.call import Call
from services.text.api.completions import CompletionRequest, Completions
from services.text.api.embeddings import PIECE_BYTES, Embedding, EmbeddingRequest, Embeddings, numbers
from services.text.api.ollama.ollama import AnswerWriter, Stopwatch, reason_of
from services.text.api.ollama.ollama_options import keep_alive_of, unknown_options, unused_options
from services.text.api.ollama.ollama_request import (
    AnswerBody,
    ChatBody,
    GenerateBody,
    ModelBody,
    names_of,
    read_chat,
    read_embed,
    read_embed_prompt,
    read_generate,
)
from services.text.api.other_parameters import unknown_parameters
from services.text.chat import Chat
from services.text.conversation import ChatRequest
from services.text.manager import TextModels
from services.text.running_answer import Completion

_encode = msgspec.json.Encoder().encode


class OllamaFacade(text_service_pb2_grpc.TextServiceServicer):
    """Ollama's endpoints for text models."""

    def __init__(self, models: TextModels, chat: Chat, completions: Completions, embeddings: Embeddings) -> None:
        self._models = models
        self._chat = chat
        self._completions = completions
        self._embeddings = embeddings

    @facade(operation="chat")
    async def Chat(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Sends lines of JSON, or one JSON body if the request sets `stream` to false."""
        await self._answer(request, *read_chat(request), call)

    @facade(operation="text_completion")
    async def Generate(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Answers one prompt, or continues a text; sends what `Chat` sends."""
        await self._answer(request, *read_generate(request), call)

    @facade(operation="embeddings")
    async def Embed(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Sends one JSON body in pieces."""
        given, wanted = read_embed(request)
        watch = Stopwatch(call.started)
        embedding = await self._embed(request, given, wanted, call, watch)
        if embedding is None:
            await call.send(json_body({"model": given.model, "embeddings": []}))
            return
        piece = bytearray(b'{"model":' + _encode(given.model) + b',"embeddings":[')
        for index, vector in enumerate(embedding.vectors):
            piece += b"," * (index > 0) + _encode(numbers(vector))
            if len(piece) >= PIECE_BYTES:
                await call.send(httpbody_pb2.HttpBody(content_type=JSON, data=bytes(piece)))
                piece.clear()
        figures = _encode({**watch.total(), "prompt_eval_count": embedding.tokens})
        piece += b"]," + figures.removeprefix(b"{")
        await call.send(httpbody_pb2.HttpBody(content_type=JSON, data=bytes(piece)))

    @facade(operation="embeddings")
    async def EmbedPrompt(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Sends one JSON body."""
        embedding = await self._embed(request, *read_embed_prompt(request), call, Stopwatch(call.started))
        await call.send(json_body({"embedding": numbers(embedding.vectors[0]) if embedding else []}))

    async def _answer(
        self,
        raw: httpbody_pb2.HttpBody,
        given: ChatBody | GenerateBody,
        wanted: ChatRequest | CompletionRequest | None,
        call: Call,
    ) -> None:
        """Answers a request, or only loads the model, or unloads it."""
        keep_alive = keep_alive_of(given.keep_alive)
        stored = await self._find(raw, given, call)
        call.ignore(_ignored(given))
        writer = AnswerWriter(given.model, chat=isinstance(given, ChatBody))
        with self._keeping(stored, keep_alive):
            if wanted is None:
                await self._load(stored, writer, call, wanted=keep_alive != 0)
                return
            watch = Stopwatch(call.started)
            with called(names_of(given)):
                async with self._completion(stored, wanted, call.client) as completion:
                    watch.loaded()
                    call.ignore(names_of(given).get(name, name) for name in completion.ignored)
                    await _send(given, completion, writer, watch, call)
                call.facts["usage"] = completion.usage.facts

    async def _load(self, stored: StoredModel, writer: AnswerWriter, call: Call, *, wanted: bool) -> None:
        """Answers a request without a prompt. `wanted`: whether the model should be loaded, or unloaded."""
        if wanted:
            async with self._models.loaded(stored):
                pass
        await call.send(json_body(writer.done("load" if wanted else "unload")))

    @contextmanager
    def _keeping(self, stored: StoredModel, seconds: float | None) -> Iterator[None]:
        """Records after a request how long its model should stay in memory; None: the request has no wish."""
        try:
            yield
        finally:
            if seconds is not None:
                self._models.keep(stored, seconds)

    def _completion(
        self, stored: StoredModel, wanted: ChatRequest | CompletionRequest, client: str
    ) -> AbstractAsyncContextManager[Completion]:
        if isinstance(wanted, ChatRequest):
            return self._chat.complete(stored, wanted, client)
        return self._completions.complete(stored, wanted, client)

    async def _embed(
        self,
        raw: httpbody_pb2.HttpBody,
        given: ModelBody,
        wanted: EmbeddingRequest | None,
        call: Call,
        watch: Stopwatch,
    ) -> Embedding | None:
        """Computes vectors; None: there were no inputs, so that the model was only loaded."""
        keep_alive = keep_alive_of(given.keep_alive)
        stored = await self._find(raw, given, call)
        call.ignore(unused_options(given.options))
        with self._keeping(stored, keep_alive):
            if wanted is None:
                async with self._models.encoder(stored):
                    return None
            embedding = await self._embeddings.embed(stored, wanted, call.client, watch.loaded)
            call.facts["usage"] = {"inputs": len(wanted.inputs), "prompt": embedding.tokens}
            return embedding

    async def _find(self, raw: httpbody_pb2.HttpBody, given: ModelBody, call: Call) -> StoredModel:
        """Returns the model of a request, and names the request's unknown parameters in the response."""
        call.ignore_unknown([*unknown_parameters(raw, type(given)), *unknown_options(given.options)])
        stored = await self._models.find(known_name(given.model, self._models.knows))
        call.model = stored.id
        return stored


def _ignored(given: AnswerBody) -> Iterator[str]:
    """Yields the parameters of a request that have no effect."""
    yield from unused_options(given.options)
    for name in ("truncate", "shift"):
        if getattr(given, name):
            yield name


async def _send(given: AnswerBody, completion: Completion, writer: AnswerWriter, watch: Stopwatch, call: Call) -> None:
    """Sends the answer in the form that the caller wants. Lines that are ready together share one HttpBody."""
    (choice,) = completion.choices
    begun = False
    while not completion.finished:
        lines: list[dict[str, Any]] = []
        for _, event in await completion.ready():
            if not begun:
                watch.begun()
                begun = True
            lines += writer.lines(event)
        if given.stream is False:
            continue
        if completion.finished:
            lines.append(writer.done(reason_of(choice.content), watch.figures(completion)))
        if lines:
            await call.send(ollama.lines(lines))
    if given.stream is False:
        whole = json_body(writer.whole(choice.content, watch.figures(completion)))
        await send_body(call, whole.content_type, whole.data)
