"""The text service: `python -m services.text`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import grpc
from allm.anthropic.v1 import messages_service_pb2_grpc
from allm.audio.v1 import transcription_service_pb2
from allm.image.v1 import image_service_pb2
from allm.models.v1 import machine_service_pb2, model_service_pb2
from allm.ollama.v1 import text_service_pb2_grpc as ollama_service_pb2_grpc
from allm.openai.v1 import conversations_service_pb2_grpc, responses_service_pb2_grpc, text_service_pb2_grpc
from allm.text.v1 import (
    chat_service_pb2,
    chat_service_pb2_grpc,
    embedding_service_pb2,
    embedding_service_pb2_grpc,
    rerank_service_pb2,
    rerank_service_pb2_grpc,
    response_service_pb2,
    response_service_pb2_grpc,
)

from services.modality import ModalityService, open_registry
from services.models.runtime_choice import EngineRegistry
from services.models.runtimes import CPU
from services.residency.memory.device_memory import VulkanMemory
from services.rpc.server import Application, run
from services.settings.modality_settings import TextSettings
from services.settings.setting import SettingError
from services.settings.settings import Settings
from services.text.api.chat.facade import TextFacade
from services.text.api.chat.servicer import ChatServicer
from services.text.api.completions import Completions
from services.text.api.embeddings import Embeddings, EmbeddingServicer
from services.text.api.messages.facade import MessagesFacade
from services.text.api.ollama.facade import OllamaFacade
from services.text.api.rerank import Reranking, RerankServicer
from services.text.api.responses.conversations_facade import ConversationsFacade
from services.text.api.responses.facade import ResponsesFacade
from services.text.api.responses.servicer import ResponseServicer
from services.text.chat import Chat
from services.text.manager import TextManager, TextModels
from services.text.memory_estimate import TextMemoryEstimate
from services.text.picture_inputs import PictureInputs
from services.text.responses.responses import Responses
from services.text.responses.sqlite_store import SqliteResponseStore
from services.text.responses.store import ResponseStore
from services.text.runtime_availability import llama_devices, text_runtimes, with_vllm_here
from services.text.schema_checker import SchemaChecker
from services.worker.devices import probe

STORE_NAME = "responses.db"


async def build(server: grpc.aio.Server, settings: Settings) -> Application:
    """Builds the service: registry, manager, provision and cores, with the APIs in both wire formats."""
    text = settings.text
    registry, vulkan = await _devices(text)
    manager = TextManager(text)
    needed = TextMemoryEstimate(text, manager.options)
    share = settings.cluster.share
    service = await ModalityService.open(server, settings, "text", registry, manager, needed, share, vulkan)
    models = TextModels(service.provision.store, manager)
    pictures = PictureInputs(settings.image)
    chat = Chat(models, SchemaChecker(text.queue_limit), pictures)
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(ChatServicer(models, chat), server)
    embeddings = Embeddings(models)
    embedding_service_pb2_grpc.add_EmbeddingServiceServicer_to_server(EmbeddingServicer(models, embeddings), server)
    reranking = Reranking(models)
    rerank_service_pb2_grpc.add_RerankServiceServicer_to_server(RerankServicer(models, reranking), server)
    completions = Completions(models, chat)
    facade = TextFacade(models, chat, completions, embeddings, reranking)
    text_service_pb2_grpc.add_TextServiceServicer_to_server(facade, server)
    ollama_facade = OllamaFacade(models, chat, completions, embeddings)
    ollama_service_pb2_grpc.add_TextServiceServicer_to_server(ollama_facade, server)
    refused = text.platform_tools == "refuse"
    messages_facade = MessagesFacade(models, chat, platform_tools_refused=refused)
    messages_service_pb2_grpc.add_MessagesServiceServicer_to_server(messages_facade, server)
    responses = Responses(models, chat, await _store(settings))
    response_service_pb2_grpc.add_ResponseServiceServicer_to_server(ResponseServicer(responses), server)
    responses_facade = ResponsesFacade(responses, platform_tools_refused=refused)
    responses_service_pb2_grpc.add_ResponsesServiceServicer_to_server(responses_facade, server)
    conversations_service_pb2_grpc.add_ConversationsServiceServicer_to_server(ConversationsFacade(responses), server)
    await service.start()

    async def close() -> None:
        await responses.close()
        await chat.close()
        await service.close()
        await pictures.close()

    typed = _names(chat_service_pb2, embedding_service_pb2, rerank_service_pb2, response_service_pb2)
    # The gateway sends reflection requests to this service, and serves the others on the same port.
    others = _names(model_service_pb2, machine_service_pb2, transcription_service_pb2, image_service_pb2)
    return service.application(typed, close, others)


def _names(*modules: Any) -> list[str]:
    """Returns the full names of the gRPC services that the generated modules define."""
    return [service.full_name for module in modules for service in module.DESCRIPTOR.services_by_name.values()]


async def _devices(text: TextSettings) -> tuple[EngineRegistry, VulkanMemory | None]:
    """Determines the devices of the runtimes, and the memory of llama.cpp's GPU if it uses one with Vulkan."""
    runtimes = await asyncio.to_thread(text_runtimes, text.vllm_python)
    if text.device == CPU:
        return with_vllm_here(EngineRegistry(CPU, forced=True, runtimes=runtimes)), None
    llama = asyncio.create_task(llama_devices(text.llama_libraries))
    devices = llama, probe("torch"), probe("vllm", python=text.vllm_python)
    registry = with_vllm_here(await open_registry(text.device, runtimes, devices))
    gpu = llama.result().first("vulkan")
    return registry, VulkanMemory(gpu, partial(llama_devices, text.llama_libraries)) if gpu else None


async def _store(settings: Settings) -> ResponseStore | None:
    """Opens the response store; None if it is off. Raises DatabaseUnusable, or SettingError for ALLM_REDIS_URL."""
    kept = settings.store
    if not kept.enabled:
        return None
    if not kept.redis_url:
        return await SqliteResponseStore.open(settings.home / STORE_NAME, kept.days, most_bytes=kept.client_bytes)
    try:
        from services.text.responses.redis_store import RedisResponseStore  # noqa: PLC0415 (an extra of its own)
    except ModuleNotFoundError as error:
        raise SettingError(
            "ALLM_REDIS_URL", "...", "unset, or the extra installed: pip install 'allm-server[redis]'"
        ) from error
    return RedisResponseStore(kept.redis_url, kept.days, most_bytes=kept.client_bytes)


if __name__ == "__main__":
    run(build, "text")
