"""A scripted catalog: real gRPC on a Unix socket; tests set its models and stop and start it."""

# ruff: noqa: N802 - gRPC names the methods

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from allm.models.v1 import model_service_pb2, model_service_pb2_grpc
from google.protobuf import duration_pb2

from services.models import wire
from services.models.desired import DesiredModel


class ScriptedCatalog(model_service_pb2_grpc.ModelServiceServicer):
    """Sends every watcher `models`, then synced, then the events of `tell` and `tell_removed`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="allm-test-")
        self.address = f"unix:{Path(self._folder.name) / 'catalog.sock'}"
        self.models: dict[str, DesiredModel] = {}
        self.known: dict[str, DesiredModel] = {}  # further models, for GetModel only
        self.reports: list[model_service_pb2.ReportModelStatusRequest] = []
        self.send_complete = False
        self.within = 0.1  # seconds between heartbeats
        self.watches: list[model_service_pb2.WatchModelsRequest] = []
        self.news = asyncio.Event()
        self._queues: list[asyncio.Queue[model_service_pb2.WatchModelsResponse | None]] = []
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        if self._server:
            await self._server.stop(0)
            self._server = None

    async def close(self) -> None:
        await self.stop()
        self._folder.cleanup()

    def tell(self, desired: DesiredModel) -> None:
        self.models[desired.id] = desired
        for queue in self._queues:
            queue.put_nowait(changed(desired))

    def tell_removed(self, model_id: str) -> None:
        self.models.pop(model_id, None)
        for queue in self._queues:
            queue.put_nowait(model_service_pb2.WatchModelsResponse(removed_id=model_id))

    def end_watches(self) -> None:
        """Ends all watches, as a lost connection does: every watcher must reconnect."""
        for queue in self._queues:
            queue.put_nowait(None)

    async def WatchModels(self, request: Any, context: Any) -> AsyncIterator[model_service_pb2.WatchModelsResponse]:
        self.watches.append(request)
        queue: asyncio.Queue[model_service_pb2.WatchModelsResponse | None] = asyncio.Queue()
        self._queues.append(queue)
        try:
            for desired in self.models.values():
                yield changed(desired)
            yield model_service_pb2.WatchModelsResponse(synced=model_service_pb2.Synced())
            while event := await queue.get():
                yield event
        finally:
            self._queues.remove(queue)

    async def GetModel(self, request: Any, context: Any) -> model_service_pb2.GetModelResponse:
        found = self.known.get(request.id)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        return model_service_pb2.GetModelResponse(model=wire.model_message(found))

    async def ReportModelStatus(self, request: Any, context: Any) -> model_service_pb2.ReportModelStatusResponse:
        self.reports.append(request)
        self.news.set()
        within = duration_pb2.Duration()
        within.FromMilliseconds(round(self.within * 1000))
        return model_service_pb2.ReportModelStatusResponse(send_complete=self.send_complete, report_within=within)


def changed(desired: DesiredModel) -> model_service_pb2.WatchModelsResponse:
    """Returns the event for a new or changed model."""
    message = wire.desired_message(desired, wire.model_message(desired))
    return model_service_pb2.WatchModelsResponse(changed=message)
