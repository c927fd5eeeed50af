"""The text service: `python -m services.text`."""

from __future__ import annotations

import grpc
from allm.models.v1 import model_service_pb2
from allm.openai.v1 import text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2, chat_service_pb2_grpc

from services.models.device import resolve_device
from services.models.registry import EngineRegistry
from services.provision.provision import Provision
from services.rpc.server import Application, run
from services.rpc.settings import Settings
from services.text.api.chat_facade import TextFacade
from services.text.api.chat_servicer import ChatServicer
from services.text.chat import Chat
from services.text.manager import TextManager


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Puts the service together: registry, manager and provision, core, and the two wire formats on top."""
    device = resolve_device(settings.text.device)
    registry = EngineRegistry(device, forced=settings.text.device != "auto")
    manager = TextManager(settings.text, device)
    provision = Provision(settings.model, "text", registry, manager)
    chat = Chat(provision.store, manager)
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(ChatServicer(chat), server)
    text_service_pb2_grpc.add_TextServiceServicer_to_server(TextFacade(chat), server)
    await provision.start()

    async def close() -> None:
        await provision.close()
        await manager.close()

    chats = chat_service_pb2.DESCRIPTOR.services_by_name["ChatService"].full_name
    # The gateway asks this service for reflection, and has the catalog behind the same port.
    models = model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
    return Application([chats], close, leave=provision.leave, described=[models])


if __name__ == "__main__":
    run(build)
