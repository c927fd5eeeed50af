"""Chat: a conversation in, the assistant's next message out. The core that both wire formats call."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from services.models.store import ModelStore, StoredModel
from services.rpc import metrics
from services.rpc.errors import AllmError, Unsupported
from services.text.conversation import ChatRequest, Usage
from services.text.engine.messages import FinishReason, Piece
from services.text.loaded import Answer, LoadedTextModel
from services.text.manager import TextManager


class Completion:
    """One running completion. `text` grows as `ready` is awaited; `finish` and `usage` are set by its last piece."""

    def __init__(self, model_id: str, answer: Answer) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(16)}"
        self.created = int(time.time())
        self.model_id = model_id
        self.finish: FinishReason | None = None
        self.usage = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)
        self._answer = answer
        self._begun = False

    async def ready(self) -> list[str]:
        """The texts that have come since, each of one step; raises what ended the request. Empty only at the end."""
        pieces = await self._answer.ready()
        if not self._begun:
            self._begun = True
            metrics.FIRST_TOKEN.labels(self.model_id).observe(time.monotonic() - self._answer.started)
        self._close(pieces[-1])
        return [piece.text for piece in pieces if piece.text]

    async def whole(self) -> str:
        """The whole text, once it is there."""
        texts: list[str] = []
        while self.finish is None:
            texts += await self.ready()
        return "".join(texts)

    def _close(self, last: Piece) -> None:
        if last.finish:
            self.finish = last.finish
            self.usage = Usage(
                prompt_tokens=self._answer.prompt_tokens,
                cached_tokens=last.cached_tokens,
                completion_tokens=last.completion_tokens,
            )


class Chat:
    """Answers chat requests with the models of a store."""

    def __init__(self, store: ModelStore, manager: TextManager) -> None:
        self._store = store
        self._manager = manager

    async def model_id(self, name: str) -> str:
        """The id behind an id or alias. Raises ModelNotFound."""
        return (await self._store.find(name)).id

    @asynccontextmanager
    async def complete(self, request: ChatRequest, client: str) -> AsyncIterator[Completion]:
        """Runs a completion as long as the block runs; leaving it early stops the model.

        Raises:
            ModelNotFound, ModelInvalid, ModelNotReady, Unsupported: the model cannot be served.
            InvalidRequest: the conversation does not fit the model.
            Overloaded: the queue is full.
        """
        stored = await self._store.find(request.model)
        if "chat" not in stored.desired.facts.capabilities:
            raise Unsupported(f"{stored.id} cannot chat", param="model")
        async with self._loaded(stored) as model:
            prompt = model.template.render(request.messages)
            async with model.generate(client, prompt, request.sampling) as answer:
                yield Completion(stored.id, answer)

    @asynccontextmanager
    async def _loaded(self, stored: StoredModel) -> AsyncIterator[LoadedTextModel]:
        """Leases a model; where it cannot be loaded here but others have it, the error says so to the gateway."""
        serving = self._store.serveable(stored)
        async with AsyncExitStack() as stack:
            try:
                lease = self._manager.lease(serving.descriptor, serving.runtime)
                model = await stack.enter_async_context(lease)
            except AllmError as problem:
                raise self._store.elsewhere(stored, problem) from problem
            yield model
