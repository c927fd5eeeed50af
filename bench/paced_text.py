"""A text service without models: every stream gets its tokens at a fixed rate.

    python -m bench.paced_text TOKENS_PER_SECOND

Server, calls and messages are those of every service (services/rpc). The text of each token is its creation time in
nanoseconds of the monotonic clock, which all processes of a machine share. The model's name is the number of tokens.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from random import Random

import grpc
from allm.openai.v1 import text_service_pb2_grpc
from allm.text.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from services.rest.openai.sse import facade
from services.rpc.call import Call, typed
from services.rpc.server import Application, run
from services.settings.settings import Settings

SECOND_NS = 1_000_000_000
NAMES = [service.full_name for service in chat_service_pb2.DESCRIPTOR.services_by_name.values()]
# As long as a real chunk of the text service.
CHUNK = (
    'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1790000000,'
    '"model":"smollm2-135m-instruct","system_fingerprint":null,"choices":[{"index":0,"delta":{"content":"%d"},'
    '"logprobs":null,"finish_reason":null}]}\n\n'
)
Reply = chat_service_pb2.StreamChatCompletionResponse


class Pace:
    """The pace of the tokens. Each stream begins at a random offset within the interval between two tokens."""

    def __init__(self, tokens_per_second: float) -> None:
        self._between = 1 / tokens_per_second
        self._random = Random(1)  # noqa: S311 (no secret)

    async def tokens(self, count: int) -> AsyncIterator[int]:
        """Yields the time of each token in nanoseconds, at that time."""
        at = time.perf_counter() + self._between * self._random.random()
        for _ in range(count):
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            yield time.perf_counter_ns()
            at += self._between


class PacedFacade(text_service_pb2_grpc.TextServiceServicer):
    """The REST facade of the service."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    @facade()
    async def CreateChatCompletion(  # type: ignore[override]  # noqa: N802 (writes instead of yielding)
        self, request: HttpBody, call: Call
    ) -> None:
        """Writes a server-sent event for each token."""
        async for moment in self._pace.tokens(int(json.loads(request.data)["model"])):
            await call.send(HttpBody(content_type="text/event-stream", data=(CHUNK % moment).encode()))
        await call.send(HttpBody(content_type="text/event-stream", data=b"data: [DONE]\n\n"))


class PacedChat(chat_service_pb2_grpc.ChatServiceServicer):
    """The typed chat service."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    @typed()
    async def StreamChatCompletion(  # type: ignore[override]  # noqa: N802 (writes instead of yielding)
        self, request: chat_service_pb2.StreamChatCompletionRequest, call: Call
    ) -> None:
        """Writes a delta for each token."""
        await call.send(Reply(started=chat_service_pb2.ChatStarted(id="chatcmpl-1", model=request.model)))
        async for moment in self._pace.tokens(int(request.model)):
            await call.send(Reply(delta=chat_service_pb2.ChatDelta(text=str(moment))))
        reason = chat_pb2.FINISH_REASON_LENGTH
        await call.send(Reply(finished=chat_service_pb2.ChatFinished(finish_reason=reason)))


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Registers the two services with the server."""
    pace = Pace(float(sys.argv[1]))
    text_service_pb2_grpc.add_TextServiceServicer_to_server(PacedFacade(pace), server)  # type: ignore[abstract]
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(PacedChat(pace), server)  # type: ignore[abstract]
    return Application(NAMES, _nothing)


async def _nothing() -> None:
    """Closes nothing."""


if __name__ == "__main__":
    run(build)
