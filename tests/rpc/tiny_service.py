"""A service with one method, run by the real `run()`; tests/rpc/test_server.py starts it.

StreamChatCompletion sends `started`, waits until the file that the request names as its model exists, and finishes.
The service has started once the files in ALLM_PRELOAD exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc

from services.errors import ModelInvalid
from services.rpc.call import Call, typed
from services.rpc.server import Application, run
from services.settings.settings import Settings

NAME = chat_service_pb2.DESCRIPTOR.services_by_name["ChatService"].full_name


class Tiny(chat_service_pb2_grpc.ChatServiceServicer):
    """Streams until the test creates the model's file."""

    @typed()
    async def CreateChatCompletion(self, request, call: Call):  # noqa: N802
        return chat_service_pb2.CreateChatCompletionResponse(model=f"{len(request.model)} characters")

    @typed()
    async def StreamChatCompletion(self, request, call: Call):  # noqa: N802
        event = chat_service_pb2.StreamChatCompletionResponse
        await call.send(event(started=chat_service_pb2.ChatStarted(model=request.model)))
        while not Path(request.model).exists():  # noqa: ASYNC110, ASYNC240 (the file comes from another process)
            await asyncio.sleep(0.01)
        await call.send(event(finished=chat_service_pb2.ChatFinished(index=0)))


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Fails like a real service when the settings name a model."""
    if settings.models:
        raise ModelInvalid(f"{settings.models[0][1]} is broken")
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(Tiny(), server)
    return Application([NAME], close, warm=lambda: exist(settings.residency.preload))


async def exist(files: Sequence[str]) -> None:
    """Waits until the files exist, in place of models loaded at the start."""
    while not all(Path(file).exists() for file in files):  # noqa: ASYNC110, ASYNC240 (they come from another process)
        await asyncio.sleep(0.01)


async def close() -> None:
    logging.getLogger("tiny").info("closed")


if __name__ == "__main__":
    run(build)
