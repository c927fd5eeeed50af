"""The text service: `python -m services.text`."""

from __future__ import annotations

import asyncio

import grpc
from allm.audio.v1 import transcription_service_pb2
from allm.image.v1 import image_service_pb2
from allm.models.v1 import machine_service_pb2, model_service_pb2, residency_service_pb2_grpc
from allm.openai.v1 import responses_service_pb2_grpc, text_service_pb2_grpc
from allm.text.v1 import (
    chat_service_pb2,
    chat_service_pb2_grpc,
    embedding_service_pb2,
    embedding_service_pb2_grpc,
    response_service_pb2,
    response_service_pb2_grpc,
)

from services.models.device import resolve_device
from services.models.registry import EngineRegistry
from services.provision.figure_reader import FigureReader
from services.provision.provision import Provision
from services.residency.residency import Residency
from services.residency.servicer import ResidencyServicer
from services.rpc.own_identity import OwnIdentity
from services.rpc.server import Application, run
from services.settings.setting_reader import SettingError
from services.settings.settings import Settings
from services.text.api.chat.facade import TextFacade
from services.text.api.chat.servicer import ChatServicer
from services.text.api.embeddings.servicer import EmbeddingServicer
from services.text.api.responses.facade import ResponsesFacade
from services.text.api.responses.servicer import ResponseServicer
from services.text.chat import Chat
from services.text.completions import Completions
from services.text.embeddings import Embeddings
from services.text.manager import TextManager, TextModels
from services.text.memory_estimate import TextMemoryEstimate
from services.text.responses.responses import Responses
from services.text.responses.sqlite_store import SqliteResponseStore
from services.text.responses.store import ResponseStore
from services.text.vllm_availability import text_runtimes

STORE_NAME = "responses.db"


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Builds the service: registry, manager, provision and cores, with the APIs in both wire formats."""
    device = resolve_device(settings.text.device)
    runtimes = await asyncio.to_thread(text_runtimes, settings.text.vllm_python, device)
    registry = EngineRegistry(device, forced=settings.text.device != "auto", runtimes=runtimes)
    manager = TextManager(settings.text, device)
    residency = await Residency.open(settings, manager, TextMemoryEstimate(settings.text, device, manager.options))
    residents = ResidencyServicer(residency)
    residency_service_pb2_grpc.add_ResidencyServiceServicer_to_server(residents, server)
    share = settings.cluster.share
    own = OwnIdentity.of_service(settings.auth, settings.model.replica, settings.tls.service)
    figures = FigureReader("text", residency.snapshot, settings.residency.threshold)
    preload = settings.residency.preload
    provision = Provision(settings.model, "text", registry, manager, preload, own, share, figures=figures)
    models = TextModels(provision.store, manager)
    chat = Chat(models)
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(ChatServicer(chat), server)
    embeddings = Embeddings(models)
    embedding_service_pb2_grpc.add_EmbeddingServiceServicer_to_server(EmbeddingServicer(embeddings), server)
    facade = TextFacade(chat, Completions(models), embeddings)
    text_service_pb2_grpc.add_TextServiceServicer_to_server(facade, server)
    responses = Responses(chat, await _store(settings))
    response_service_pb2_grpc.add_ResponseServiceServicer_to_server(ResponseServicer(responses), server)
    responses_service_pb2_grpc.add_ResponsesServiceServicer_to_server(ResponsesFacade(responses), server)
    await residency.start()
    await provision.start()

    async def leave() -> None:
        residents.end_watches()
        await provision.leave()

    async def close() -> None:
        await responses.close()
        await provision.close()
        await manager.close()
        await residency.close()

    typed = [
        chat_service_pb2.DESCRIPTOR.services_by_name["ChatService"].full_name,
        embedding_service_pb2.DESCRIPTOR.services_by_name["EmbeddingService"].full_name,
        response_service_pb2.DESCRIPTOR.services_by_name["ResponseService"].full_name,
    ]
    # The gateway sends reflection requests to this service, and serves the others on the same port.
    others = [
        model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name,
        machine_service_pb2.DESCRIPTOR.services_by_name["MachineService"].full_name,
        transcription_service_pb2.DESCRIPTOR.services_by_name["TranscriptionService"].full_name,
        image_service_pb2.DESCRIPTOR.services_by_name["ImageService"].full_name,
    ]
    return Application(typed, close, leave=leave, described=others, warm=provision.warm, models=provision.models)


async def _store(settings: Settings) -> ResponseStore | None:
    """Opens the response store; None if it is off. Raises DatabaseUnusable, or SettingError for ALLM_REDIS_URL."""
    kept = settings.store
    if not kept.enabled:
        return None
    if not kept.redis_url:
        return await SqliteResponseStore.open(settings.home / STORE_NAME, kept.days)
    try:
        from services.text.responses.redis_store import RedisResponseStore  # noqa: PLC0415 (an extra of its own)
    except ModuleNotFoundError as error:
        raise SettingError(
            "ALLM_REDIS_URL", "...", "unset, or the extra installed: pip install 'allm-server[redis]'"
        ) from error
    return RedisResponseStore(kept.redis_url, kept.days)


if __name__ == "__main__":
    run(build, "text")
