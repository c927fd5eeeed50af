"""A scripted stand-in for the catalog: real gRPC, with errors from the services' own wrappers."""

# ruff: noqa: N802 - gRPC names the methods

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from allm.models.v1 import (
    machine_service_pb2,
    machine_service_pb2_grpc,
    model_pb2,
    model_service_pb2,
    model_service_pb2_grpc,
)
from allm.openai.v1 import models_service_pb2, models_service_pb2_grpc
from google.api.httpbody_pb2 import HttpBody

from services.errors import ModelNotFound
from services.rest.openai.sse import facade
from services.rpc.call import Call, typed
from tests.gateway.upstream import OPTIONS, Context, serve

Script = Callable[[Any, Call], Awaitable[model_pb2.Model]]


async def echo(request: Any, call: Call) -> model_pb2.Model:
    """Returns a model with the requested id: the default script."""
    return model_pb2.Model(id=request.id, format=model_pb2.FORMAT_GGUF, size_bytes=123, keep_loaded=True)


@dataclass
class ScriptedCatalog:
    """All services of the catalog in one object; `manage` scripts the verbs that change models."""

    manage: Script = echo
    metadata: list[dict[str, str]] = field(default_factory=list)  # of every call, in order
    requests: list[Any] = field(default_factory=list)  # of every call of ModelService
    server: grpc.aio.Server | None = None

    def forget(self) -> None:
        """Restores the default script and clears the recorded calls."""
        self.manage = echo
        self.metadata.clear()
        self.requests.clear()

    async def start(self, address: str) -> None:
        """Serves on `address` and reports itself healthy."""
        self.server = grpc.aio.server(interceptors=[_Recorder(self)], options=OPTIONS)
        models_service_pb2_grpc.add_ModelsServiceServicer_to_server(_Facade(), self.server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(_Models(self), self.server)
        machine_service_pb2_grpc.add_MachineServiceServicer_to_server(_Machine(), self.server)
        await serve(self.server, address)

    async def stop(self) -> None:
        if self.server:
            await self.server.stop(0)
            self.server = None


@dataclass
class _Recorder(grpc.aio.ServerInterceptor):
    """Records the metadata of every call except the gateway's health checks."""

    catalog: ScriptedCatalog

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        if not details.method.startswith("/grpc.health."):
            self.catalog.metadata.append(dict(details.invocation_metadata))
        return await continuation(details)


class _Facade(models_service_pb2_grpc.ModelsServiceServicer):
    @facade()
    async def ListModels(self, request: models_service_pb2.ListModelsRequest, call: Call) -> HttpBody:
        shown = {"object": "list", "data": []} | ({"state": request.state} if request.state else {})
        return HttpBody(content_type="application/json", data=json.dumps(shown).encode())

    @facade()
    async def GetModel(self, request: models_service_pb2.GetModelRequest, call: Call) -> HttpBody:
        if request.id == "nothing":
            raise ModelNotFound("The model 'nothing' does not exist.")
        return HttpBody(content_type="application/json", data=json.dumps({"id": request.id}).encode())

    @facade()
    async def DeleteModel(self, request: models_service_pb2.DeleteModelRequest, call: Call) -> HttpBody:
        if not request.id:
            raise ModelNotFound("The model '' does not exist.")
        return HttpBody(content_type="application/json", data=json.dumps({"id": request.id, "deleted": True}).encode())


@dataclass
class _Models(model_service_pb2_grpc.ModelServiceServicer):
    catalog: ScriptedCatalog

    async def _managed(self, request: Any, call: Call) -> model_pb2.Model:
        self.catalog.requests.append(request)
        return await self.catalog.manage(request, call)

    @typed()
    async def RegisterModel(self, request: Any, call: Call) -> model_service_pb2.RegisterModelResponse:
        return model_service_pb2.RegisterModelResponse(model=await self._managed(request, call))

    @typed()
    async def UpdateModel(self, request: Any, call: Call) -> model_service_pb2.UpdateModelResponse:
        return model_service_pb2.UpdateModelResponse(model=await self._managed(request, call))

    @typed()
    async def LoadModel(self, request: Any, call: Call) -> model_service_pb2.LoadModelResponse:
        return model_service_pb2.LoadModelResponse(model=await self._managed(request, call))

    @typed()
    async def UnloadModel(self, request: Any, call: Call) -> model_service_pb2.UnloadModelResponse:
        return model_service_pb2.UnloadModelResponse(model=await self._managed(request, call))

    @typed()
    async def ListModels(self, request: Any, call: Call) -> model_service_pb2.ListModelsResponse:
        self.catalog.requests.append(request)
        return model_service_pb2.ListModelsResponse(models=[model_pb2.Model(id="org/scripted")])

    @typed()
    async def DeleteModel(self, request: Any, call: Call) -> model_service_pb2.DeleteModelResponse:
        self.catalog.requests.append(request)
        return model_service_pb2.DeleteModelResponse()

    @typed()
    async def ReportModelStatus(self, request: Any, call: Call) -> model_service_pb2.ReportModelStatusResponse:
        self.catalog.requests.append(request)
        return model_service_pb2.ReportModelStatusResponse()

    async def WatchModels(self, request: Any, context: Context) -> Any:
        self.catalog.requests.append(request)
        yield model_service_pb2.WatchModelsResponse(synced=model_service_pb2.Synced())


class _Machine(machine_service_pb2_grpc.MachineServiceServicer):
    async def WatchMachine(self, request: Any, context: Context) -> Any:
        yield machine_service_pb2.WatchMachineResponse(synced=machine_service_pb2.MachineSynced())
