"""GET and DELETE of /v1/models in OpenAI's format: the ready models, and on request all models with details.

A request with Anthropic's header gets the ready models in Anthropic's format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
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
from services.rest.anthropic import VERSION_HEADER
from services.rest.openai.body import json_body
from services.rest.openai.sse import facade
from services.rpc.call import Call

SECONDS = 30.0
PAGE, MOST = 20, 1000  # models on a page of Anthropic's format: by default, and at most


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
        if call.header(VERSION_HEADER):
            names = ((view, name) for view in all_visible(self._catalog.views) for name in _names(view))
            return json_body(_page([_anthropics(view, name) for view, name in names], request))
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
        shown = _anthropics if call.header(VERSION_HEADER) else _plain
        return json_body(shown(view, request.id))

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
    return _list([_plain(view, name) for view in views for name in _names(view)])


def _names(view: ModelView) -> Iterable[str]:
    """Returns the names of a ready model; none if it is not."""
    return view.registration.names if view.serving else ()


def _page(models: list[dict[str, Any]], request: models_service_pb2.ListModelsRequest) -> dict[str, Any]:
    """Returns a page of Anthropic's list. Raises InvalidRequest for its bounds."""
    try:
        limit = int(request.limit or PAGE)
    except ValueError:
        limit = 0
    if not 1 <= limit <= MOST:
        raise InvalidRequest(f"'limit' must be 1 to {MOST}, not {request.limit[:40]!r}.", param="limit")
    ids = [model["id"] for model in models]
    for param in ("after_id", "before_id"):
        if (name := getattr(request, param)) and name not in ids:
            raise InvalidRequest(f"'{param}' names no model of this list.", param=param)
    start = ids.index(request.after_id) + 1 if request.after_id else 0
    end = ids.index(request.before_id) if request.before_id else len(models)
    rest = models[start:end]
    page = rest[-limit:] if request.before_id else rest[:limit]
    return {
        "data": page,
        "has_more": len(rest) > len(page),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _anthropics(view: ModelView, name: str) -> dict[str, Any]:
    """Builds Anthropic's object. The context is that of prompt and answer together."""
    context = _context(view)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(view.desired.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def _context(view: ModelView) -> int | None:
    return view.desired.engine.context_tokens or view.desired.facts.context_tokens or None


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
    return {
        "id": name,
        "object": "model",
        "created": view.desired.created,
        "owned_by": "allm",
        "context_length": _context(view),
        "capabilities": sorted(view.desired.facts.capabilities),
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
        "expires": memory.expires,
    }


def _progress(view: ModelView) -> dict[str, int] | None:
    """Returns the progress of the replica that is furthest; None if nothing is being fetched."""
    under_way = [status for _, status in view.replicas if status.total_bytes > 0]
    if not under_way:
        return None
    best = max(under_way, key=lambda status: status.done_bytes / status.total_bytes)
    return {"done_bytes": best.done_bytes, "total_bytes": best.total_bytes}
