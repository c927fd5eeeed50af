"""The catalog in the test process: real gRPC on a socket, a real database, real files."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from allm.models.v1 import (
    machine_service_pb2,
    machine_service_pb2_grpc,
    model_pb2,
    model_service_pb2,
    model_service_pb2_grpc,
)
from allm.ollama.v1 import models_service_pb2_grpc as ollama_service_pb2_grpc
from allm.openai.v1 import models_service_pb2_grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from services.catalog.api.machine_servicer import MachineServicer
from services.catalog.api.models_facade import ModelsFacade
from services.catalog.api.models_servicer import ModelServicer
from services.catalog.api.ollama_facade import OllamaModelsFacade
from services.catalog.catalog import Catalog
from services.catalog.database import MIGRATIONS, CatalogDatabase
from services.catalog.registration.registrations import Registrations
from services.models.artifacts import load_supported
from services.settings.settings import Settings, load_settings
from tests.catalog.model_files import gguf

PATIENCE = 60.0  # seconds
READY, LOADED = model_pb2.MODEL_STATE_READY, model_pb2.MODEL_STATE_LOADED
UNSUPPORTED, PENDING = model_pb2.MODEL_STATE_UNSUPPORTED, model_pb2.MODEL_STATE_PENDING
FAILED, DOWNLOADING = model_pb2.MODEL_STATE_FAILED, model_pb2.MODEL_STATE_DOWNLOADING
TEXT, AUDIO = model_pb2.MODALITY_TEXT, model_pb2.MODALITY_AUDIO


class Clock:
    """A clock that only tests advance, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Service:
    """A running catalog and its client stubs."""

    settings: Settings
    catalog: Catalog
    channel: grpc.aio.Channel
    files: Path  # the only root of local sources
    clock: Clock
    models: Any = field(init=False)
    facade: Any = field(init=False)
    ollama: Any = field(init=False)
    machine: Any = field(init=False)

    def __post_init__(self) -> None:
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.facade = models_service_pb2_grpc.ModelsServiceStub(self.channel)
        self.ollama = ollama_service_pb2_grpc.ModelsServiceStub(self.channel)
        self.machine = machine_service_pb2_grpc.MachineServiceStub(self.channel)

    async def register(self, model_id: str, file: str = "", **more: Any) -> model_pb2.Model:
        """Registers a GGUF file and writes the file if it does not exist."""
        path = self.files / (file or f"{model_id.replace('/', '-')}.gguf")
        if not path.exists():
            gguf(path)
        request = {"id": model_id, "source": f"file://{path}", "format": "gguf"} | more
        answer = await self.models.RegisterModel(model_service_pb2.RegisterModelRequest(**request))
        return answer.model

    async def get(self, name: str) -> model_pb2.Model:
        """Returns one model."""
        answer = await self.models.GetModel(model_service_pb2.GetModelRequest(id=name))
        return answer.model

    async def report(self, replica: str = "text-1", complete: bool = False, **more: Any) -> bool:
        """Sends a report as a replica. Returns whether the next report must be complete."""
        request = {"replica": replica, "modality": TEXT, "complete": complete} | more
        if complete:
            request = {"device": "cpu", "runtimes": [llama_cpp()]} | request
        answer = await self.models.ReportModelStatus(model_service_pb2.ReportModelStatusRequest(**request))
        return bool(answer.send_complete)

    def watch(self, **request: Any) -> Any:
        """Opens a watch of the models."""
        return self.models.WatchModels(model_service_pb2.WatchModelsRequest(**request))

    def watch_machine(self, seconds: int = 0) -> Any:
        """Opens a watch of the machine, with `seconds` of history."""
        history = duration_pb2.Duration(seconds=seconds)
        return self.machine.WatchMachine(machine_service_pb2.WatchMachineRequest(history=history))


def llama_cpp(**more: Any) -> model_service_pb2.RuntimeOffer:
    """Returns the llama_cpp offer of a text service."""
    offer: dict[str, Any] = {
        "name": "llama_cpp",
        "formats": [model_pb2.FORMAT_GGUF],
        "architectures": ["llama", "qwen3"],
        "capabilities": ["chat"],
        "devices": ["cpu", "cuda"],
    }
    return model_service_pb2.RuntimeOffer(**(offer | more))


def torch(**more: Any) -> model_service_pb2.RuntimeOffer:
    """Returns the torch offer of a text service."""
    return llama_cpp(**({"name": "torch", "formats": [model_pb2.FORMAT_SAFETENSORS]} | more))


def status(model_id: str, state: Any = READY, **more: Any) -> model_service_pb2.ModelStatus:
    """Returns a replica's status of a model."""
    said = model_pb2.ReplicaStatus(**({"state": state, "generation": 1, "device": "cpu"} | more))
    return model_service_pb2.ModelStatus(id=model_id, status=said)


@asynccontextmanager
async def running(home: Path, **environ: str) -> AsyncIterator[Service]:
    """Runs a catalog as long as the block; its files lie in `home`/files."""
    files = home / "files"
    files.mkdir(exist_ok=True)
    settings = load_settings({"ALLM_HOME": str(home), "ALLM_MODEL_ROOTS": str(files)} | environ)
    database = await CatalogDatabase.open(settings.home / "catalog.db", MIGRATIONS)
    clock = Clock()
    registrations = await Registrations.load(database)
    catalog = Catalog(registrations, settings.model, load_supported(settings.model.supported), clock)
    folder = tempfile.mkdtemp(prefix="catalog-")  # a socket path must be short
    server = grpc.aio.server()
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(catalog), server)
    models_service_pb2_grpc.add_ModelsServiceServicer_to_server(ModelsFacade(catalog), server)
    ollama_service_pb2_grpc.add_ModelsServiceServicer_to_server(OllamaModelsFacade(catalog), server)
    machine_service_pb2_grpc.add_MachineServiceServicer_to_server(MachineServicer(catalog.machine_watchers), server)
    server.add_insecure_port(f"unix:{folder}/s")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{folder}/s") as channel:
            yield Service(settings, catalog, channel, files, clock)
    finally:
        catalog.end_watches()
        await server.stop(PATIENCE)
        await catalog.close()
        await database.close()
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Refusal:
    """The error that a caller receives."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    param: str = ""


async def refusal(call: Any) -> Refusal:
    """Returns the error of a typed call."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
        (detail,) = status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details
        info = error_details_pb2.ErrorInfo()
        assert detail.Unpack(info)
        return Refusal(error.code(), error.details() or "", info.reason, info.metadata.get("param", ""))
    raise AssertionError(f"no error but {answer}")


async def event(stream: Any) -> Any:
    """Returns the next event of a watch."""
    return await asyncio.wait_for(stream.read(), PATIENCE)


async def snapshot(stream: Any) -> list[Any]:
    """Returns the models of a watch before the synced event."""
    found = []
    while not (received := await event(stream)).HasField("synced"):
        assert received.HasField("changed"), received
        found.append(received.changed)
    return found


def ids(models: Iterable[Any]) -> list[str]:
    """Returns the ids of the models."""
    return [model.id for model in models]
