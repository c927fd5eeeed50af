"""The text service: `python -m services.text`."""

from __future__ import annotations

import grpc
from allm.models.v1 import model_service_pb2, model_service_pb2_grpc
from allm.openai.v1 import models_service_pb2_grpc, text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc

from services.models.device import resolve_device
from services.models.registry import EngineRegistry
from services.models.store import load_store
from services.rpc.server import Application, run
from services.rpc.settings import Settings
from services.text.api.chat_facade import TextFacade
from services.text.api.chat_servicer import ChatServicer
from services.text.api.models_facade import ModelsFacade
from services.text.api.models_servicer import ModelServicer
from services.text.chat import Chat
from services.text.manager import TextManager


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Puts the service together: registry and store, manager, core, and the two wire formats on top."""
    device = resolve_device(settings.text.device)
    registry = EngineRegistry(device, forced=settings.text.device != "auto")
    store = load_store(settings.models, settings.aliases, registry)
    manager = TextManager(settings.text, device)
    chat = Chat(store, manager)
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(ChatServicer(chat), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(store, manager), server)
    text_service_pb2_grpc.add_TextServiceServicer_to_server(TextFacade(chat), server)
    models_service_pb2_grpc.add_ModelsServiceServicer_to_server(ModelsFacade(store), server)
    names = [
        chat_service_pb2.DESCRIPTOR.services_by_name["ChatService"].full_name,
        model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name,
    ]
    return Application(names, manager.close)


if __name__ == "__main__":
    run(build)
