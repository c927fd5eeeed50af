"""A chat core with a scripted model: everything above the worker is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.errors import AllmError, ContextLengthExceeded
from services.models.store import StoredModel
from services.text.conversation import ChatRequest
from services.text.engine.messages import Piece
from services.text.engine.sampling import SamplingParams
from services.text.loaded import Answer
from services.text.parsers.dialect import HERMES
from services.text.parsers.tool_grammar import ToolShape
from services.text.responses.response import Item, MessageItem, Part, ResponseRequest, ResponseSettings
from services.text.running_answer import Choice, Completion
from tests.text.checked_request import checked_request

MODEL = "m"
PROMPT_TOKENS = 7


class ScriptedModels:
    """The one registered model."""

    id = MODEL

    async def find(self, name: str) -> ScriptedModels:
        return self

    async def servable_id(self, name: str) -> str:
        return MODEL


@dataclass
class ScriptedChat:
    """Answers with `pieces`; each may wait for `gate`. `fits` is the largest number of messages that fits the model."""

    pieces: Sequence[str] = ("Hel", "lo")
    finish: str = "stop"
    gate: asyncio.Event | None = None  # blocks all pieces but the first until set
    error: AllmError | None = None  # raised after the first piece
    fits: int = 1000
    asked: list[ChatRequest] = field(default_factory=list)
    stopped: int = 0  # answers abandoned before their end
    running: int = 0

    async def count(self, stored: StoredModel, request: ChatRequest, client: str) -> int:
        self.asked.append(request)
        return PROMPT_TOKENS

    async def checked(self, request: ChatRequest) -> ChatRequest:
        return checked_request(request)

    @asynccontextmanager
    async def complete(self, stored: StoredModel, request: ChatRequest, client: str) -> AsyncIterator[Completion]:
        self.asked.append(request)
        answer = Answer()
        answer.prompt_tokens = PROMPT_TOKENS
        if len(request.messages) > self.fits:
            answer.fail(ContextLengthExceeded("too long", param="messages"))
        tools = [ToolShape(tool.name, tool.parameters) for tool in request.callable_tools]
        completion = Completion(MODEL, [Choice(answer, HERMES.parser(tools, reasoning_open=False))])
        speaking = asyncio.create_task(self._speak(answer))
        self.running += 1
        try:
            yield completion
        finally:
            self.running -= 1
            self.stopped += not answer.finished
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

    async def _speak(self, answer: Answer) -> None:
        for number, text in enumerate(self.pieces, 1):
            last = number == len(self.pieces)
            finish: Any = self.finish if last and not self.error else None
            answer.push(Piece(1, text, finish, number, 0))
            if number == 1 and self.gate:
                await self.gate.wait()
            if number == 1 and self.error:
                answer.fail(self.error)
                return
            await asyncio.sleep(0)


def said(text: str, role: Any = "user", item_id: str = "msg_1") -> MessageItem:
    """Returns a message."""
    return MessageItem(id=item_id, role=role, content=(Part(text=text),))


def request(*items: Item | str, **asked: Any) -> ResponseRequest:
    """Returns a request for a response."""
    given = tuple(said(item) if isinstance(item, str) else item for item in items or ("Hi",))
    sampling = SamplingParams(max_tokens=asked.pop("max_tokens", None))
    return ResponseRequest(
        model=MODEL, input=given, settings=msgspec.structs.replace(ResponseSettings(sampling=sampling), **asked)
    )
