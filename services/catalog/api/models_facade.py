"""GET and DELETE of /v1/models in OpenAI's format: the ready models, and on request all models with details."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from allm.openai.v1 import models_service_pb2, models_service_pb2_grpc
from google.api import httpbody_pb2

from services.auth.caller import current_caller
from services.auth.identity import ADMIN
from services.catalog.api.messages import all_visible, required_id, shown_source, visible
from services.catalog.catalog import Catalog
from services.catalog.model_view import ModelView
from services.catalog.registration.declarations import Declarations
from services.errors import InvalidRequest, ModelNotFound
from services.models.status import CanonicalStatus, MemoryStatus, Status
from services.rest.openai.body import json_body
from services.rest.openai.sse import facade
from services.rpc.call import Call

SECONDS = 30.0


class ModelsFacade(models_service_pb2_grpc.ModelsServiceServicer):
    """OpenAI's model endpoints on top of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._ready: tuple[int, httpbody_pb2.HttpBody] | None = None  # the plain list, with its version

    @facade(SECONDS, scope="")
    async def ListModels(  # noqa: N802
        self, request: models_service_pb2.ListModelsRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Lists the ready models under their ids and aliases; with `state=all` all models, under their ids."""
        if request.state == "all":
            more = _models_file(self._catalog.declarations) if ADMIN in call.identity.scopes else {}
            return _list([_detailed(view) for view in all_visible(self._catalog.views)], more)
        if request.state:
            raise InvalidRequest(f"'state' must be 'all' or left out, not {request.state!r}", param="state")
        if call.identity.models:  # a key limited to some models
            return _ready(all_visible(self._catalog.views))
        version = self._catalog.views.version
        if self._ready is None or self._ready[0] != version:
            self._ready = (version, _ready(self._catalog.views.all()))
        return self._ready[1]

    @facade(SECONDS, scope="")
    async def GetModel(  # noqa: N802
        self, request: models_service_pb2.GetModelRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Returns one ready model."""
        view = visible(self._catalog.views, required_id(request.id))
        call.model = view.id
        if not view.serving:
            why = f": {current_caller().shown(view.reason)}" if view.reason else ""
            raise ModelNotFound(f"The model `{request.id}` cannot be used: it is {view.state}{why}", param="model")
        return json_body(_plain(view, request.id))

    @facade(SECONDS, scope=ADMIN)
    async def DeleteModel(  # noqa: N802
        self, request: models_service_pb2.DeleteModelRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Deletes a model, named by its id."""
        view = self._catalog.views.get(required_id(request.id))
        if view.id != request.id:
            what = f"`{request.id}` is an alias of the model `{view.id}`: to delete that model, name its id"
            raise InvalidRequest(what, param="id")
        await self._catalog.delete(view.id)
        return json_body({"id": view.id, "object": "model", "deleted": True})


def _ready(views: list[ModelView]) -> httpbody_pb2.HttpBody:
    return _list([_plain(view, name) for view in views if view.serving for name in view.registration.names])


def _list(models: list[dict[str, Any]], more: dict[str, Any] | None = None) -> httpbody_pb2.HttpBody:
    return json_body({"object": "list", "data": models} | (more or {}))


def _models_file(declarations: Declarations) -> dict[str, Any]:
    """Returns the models file's unapplied entries."""
    if declarations.path is None:
        return {}
    problems = [asdict(problem) for problem in declarations.problems()]
    return {"models_file": {"path": str(declarations.path), "problems": problems}}


def _plain(view: ModelView, name: str) -> dict[str, Any]:
    """Builds OpenAI's object, with two fields more: the model's context in tokens, null if unknown, and its skills."""
    facts, own = view.desired.facts, view.desired.engine.context_tokens
    return {
        "id": name,
        "object": "model",
        "created": view.desired.created,
        "owned_by": "allm",
        "context_length": own or facts.context_tokens or None,
        "capabilities": sorted(facts.capabilities),
    }


def _detailed(view: ModelView) -> dict[str, Any]:
    facts = view.desired.facts
    return _plain(view, view.id) | {
        "aliases": view.desired.aliases,
        "state": view.state,
        "reason": current_caller().shown(view.reason),
        "replicas": [_replica(name, status) for name, status in view.replicas],
        "runtime": view.runtime,
        "format": facts.format,
        "modality": facts.modality,
        "source": shown_source(view.desired.source),
        "declared": bool(view.registration.declared),
        "size_bytes": facts.size,
        "progress": _progress(view),
    }


def _replica(name: str, status: Status) -> dict[str, Any]:
    return {
        "replica": name,
        "state": status.state,
        "reason": current_caller().shown(status.reason),
        "runtime": status.runtime,
        "device": status.device,
        "generation": status.generation,
        "artifact": status.artifact,
        "done_bytes": status.done_bytes,
        "total_bytes": status.total_bytes,
        "memory": _memory(status.memory) if status.memory else None,
        "canonical": _canonical(status.canonical) if status.canonical else None,
    }


def _canonical(files: CanonicalStatus) -> dict[str, Any]:
    return asdict(files) | {"reason": current_caller().shown(files.reason)}


def _memory(memory: MemoryStatus) -> dict[str, Any]:
    return {
        "loading": memory.loading,
        "pinned": memory.pinned,
        "reserved_bytes": memory.reserved,
        "host_bytes": memory.host,
        "requests": memory.requests,
        "last_used": memory.last_used,
    }


def _progress(view: ModelView) -> dict[str, int] | None:
    """Returns the progress of the replica that is furthest; None if nothing is being fetched."""
    under_way = [status for _, status in view.replicas if status.total_bytes > 0]
    if not under_way:
        return None
    best = max(under_way, key=lambda status: status.done_bytes / status.total_bytes)
    return {"done_bytes": best.done_bytes, "total_bytes": best.total_bytes}
