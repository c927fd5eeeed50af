"""The text service without catalog, files and model, on a Unix socket: the test scripts its workers' messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
from allm.anthropic.v1 import messages_service_pb2_grpc
from allm.ollama.v1 import text_service_pb2_grpc as ollama_service_pb2_grpc
from allm.openai.v1 import responses_service_pb2_grpc, text_service_pb2_grpc
from allm.text.v1 import chat_service_pb2_grpc, response_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from services.models.descriptor import ModelDescriptor, ModelFacts
from services.models.desired import DesiredModel
from services.models.manifest import Manifest, ManifestFile
from services.models.runtimes import RUNTIMES, RuntimeSpec
from services.models.store import ModelStore, ServedGeneration, StoredModel
from services.residency.manager import ModelManager
from services.settings.settings import load_settings
from services.text.api.chat.facade import TextFacade
from services.text.api.chat.servicer import ChatServicer
from services.text.api.completions import Completions
from services.text.api.embeddings import Embeddings
from services.text.api.messages.facade import MessagesFacade
from services.text.api.ollama.facade import OllamaFacade
from services.text.api.rerank import Reranking
from services.text.api.responses.facade import ResponsesFacade
from services.text.api.responses.servicer import ResponseServicer
from services.text.chat import Chat
from services.text.engine.messages import Accepted, Counters, DecoderReady, Piece, Stepped, Submit
from services.text.loaded import LoadedTextModel
from services.text.manager import TextModels, TextResident
from services.text.picture_inputs import PictureInputs
from services.text.responses.responses import Responses
from services.text.responses.store import ResponseStore
from services.text.schema_checker import SchemaChecker
from services.text.template_process import TemplateProcess
from tests.puppet_worker import PuppetWorker
from tests.stack import MODEL

PROMPT_TOKENS = 3
READY = DecoderReady(
    context_tokens=64,
    kv_tokens=64,
    max_sequences=64,
    vocabulary=64,
    chat_template="",
    bos="",
    eos="",
    add_bos=False,
)


Script = Callable[[PuppetWorker, Submit], None]


def begin(worker: PuppetWorker, request: Submit) -> None:
    """Sends the first piece of an answer and nothing more."""
    worker.say(Accepted(request.request, PROMPT_TOKENS), stepped(Piece(request.request, "Paris", None, 1, 0)))


def end(worker: PuppetWorker, request: Submit, cached: int = 0) -> None:
    """Sends the whole answer."""
    worker.say(Accepted(request.request, PROMPT_TOKENS), stepped(Piece(request.request, "Paris", "stop", 1, cached)))


def stepped(*pieces: Piece) -> Stepped:
    """Returns the message at the end of a step."""
    return Stepped(list(pieces), Counters(1, len(pieces), 0, 0, 0, 0))


def submitted(worker: PuppetWorker) -> list[Submit]:
    """Returns the requests that a worker has received."""
    return [message for message in worker.sent if isinstance(message, Submit)]


def events(data: bytes) -> list[tuple[str, Any]]:
    """Reads server-sent events."""
    found = [part.split("\n") for part in data.decode().split("\n\n") if part]
    return [(name.removeprefix("event: "), json.loads(value.removeprefix("data: "))) for name, value in found]


async def rest(call: Any) -> bytes:
    """Reads a stream to its end."""
    data = b""
    while (piece := await call.read()) is not grpc.aio.EOF:
        data += piece.data
    return data


def registered(*capabilities: str) -> StoredModel:
    """Returns the only registered model, which can chat."""
    about: dict[str, Any] = {
        "id": MODEL,
        "modality": "text",
        "format": "gguf",
        "architecture": "llama",
        "capabilities": frozenset({"chat", *capabilities}),
        "size": 5,
        "context_tokens": READY.context_tokens,
    }
    file = Path("/models/m.gguf")
    manifest = Manifest(files=(ManifestFile(path=file.name, size=5),), primary=file.name, folder=str(file.parent))
    desired = DesiredModel(
        facts=ModelFacts(**about),
        aliases=(),
        source=file.as_uri(),
        generation=1,
        manifest=manifest,
        created=1,
        updated=1,
    )
    descriptor = ModelDescriptor(**about, generation=1, files=(file,), primary=file)
    (runtime,) = (runtime for runtime in RUNTIMES if runtime.name == "llama_cpp")
    return StoredModel(desired=desired, serving=ServedGeneration(descriptor=descriptor, runtime=runtime), problem=None)


@dataclass
class PuppetService:
    """The running service. `script`: a worker's immediate reply to a request; `workers`: one per load of the model."""

    channel: grpc.aio.Channel
    manager: ModelManager[TextResident]
    pictures: PictureInputs
    script: Script = begin
    workers: list[PuppetWorker] = field(default_factory=list)

    @property
    def chat(self) -> Any:
        """Stub of the typed API."""
        return chat_service_pb2_grpc.ChatServiceStub(self.channel)

    @property
    def responses(self) -> Any:
        """Stub of the typed Responses API."""
        return response_service_pb2_grpc.ResponseServiceStub(self.channel)

    def post(self, method: str = "CreateChatCompletion", **body: Any) -> Any:
        """Sends a REST request as the gateway forwards it; returns the pieces of its answer."""
        stubs = (
            messages_service_pb2_grpc.MessagesServiceStub,
            ollama_service_pb2_grpc.TextServiceStub,
            responses_service_pb2_grpc.ResponsesServiceStub,
            text_service_pb2_grpc.TextServiceStub,
        )
        (rpc,) = (rpc for stub in stubs if (rpc := getattr(stub(self.channel), method, None)))
        return rpc(HttpBody(content_type="application/json", data=json.dumps({"model": MODEL, **body}).encode()))

    def start(self) -> PuppetWorker:
        """Starts another worker."""

        def answer(sent: Any) -> None:
            if isinstance(sent, Submit):
                self.script(worker, sent)

        worker = PuppetWorker(answer)
        self.workers.append(worker)
        return worker


@asynccontextmanager
async def puppet_service(
    folder: Path, ready: DecoderReady = READY, kept: ResponseStore | None = None, **limits: float
) -> AsyncIterator[PuppetService]:
    """Runs the service on a socket in this folder; `kept` stores responses; `limits` are settings of the service."""
    loaded = load_settings({"ALLM_HOME": str(folder)})
    settings = replace(loaded.text, **limits)  # type: ignore[arg-type]

    async def load(descriptor: ModelDescriptor, runtime: RuntimeSpec) -> TextResident:
        worker: Any = service.start()
        template = TemplateProcess(MODEL, settings.queue_limit)
        model = LoadedTextModel(MODEL, descriptor.architecture, worker, ready, settings, template)
        await model.open()
        return model

    store: ModelStore = ModelStore("me")
    store.put(registered(*(["vision"] if ready.sees else [])))
    manager = ModelManager(load)
    models = TextModels(store, manager)
    pictures = PictureInputs(loaded.image)
    chat = Chat(models, SchemaChecker(settings.queue_limit), pictures)
    server = grpc.aio.server()
    responses = Responses(models, chat, kept)
    completions, embeddings = Completions(models, chat), Embeddings(models)
    facade = TextFacade(models, chat, completions, embeddings, Reranking(models))
    ollama_facade = OllamaFacade(models, chat, completions, embeddings)
    chat_service_pb2_grpc.add_ChatServiceServicer_to_server(ChatServicer(models, chat), server)
    text_service_pb2_grpc.add_TextServiceServicer_to_server(facade, server)
    messages_service_pb2_grpc.add_MessagesServiceServicer_to_server(MessagesFacade(models, chat), server)
    ollama_service_pb2_grpc.add_TextServiceServicer_to_server(ollama_facade, server)
    response_service_pb2_grpc.add_ResponseServiceServicer_to_server(ResponseServicer(responses), server)
    responses_service_pb2_grpc.add_ResponsesServiceServicer_to_server(ResponsesFacade(responses), server)
    server.add_insecure_port(address := f"unix:{folder}/text")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            service = PuppetService(channel, manager, pictures)
            yield service
    finally:
        await server.stop(0)
        await responses.close()
        await chat.close()
        await pictures.close()
        await manager.close()
