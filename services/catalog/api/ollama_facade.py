"""Ollama's endpoints about models: the ready ones, those in memory, the details of one; pulls and deletes models.

Names are ids and aliases, shown with a tag, because clients look them up with one. The catalog knows neither the number
of a model's parameters nor its chat template: these fields are empty.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from allm.ollama.v1 import models_service_pb2, models_service_pb2_grpc
from google.api import httpbody_pb2

from services.auth.caller import current_caller
from services.auth.identity import ADMIN
from services.catalog.api.messages import all_visible, shown_source, visible
from services.catalog.catalog import Catalog
from services.catalog.model_view import ModelView
from services.catalog.registration.hub_choice import quantization_of
from services.catalog.watches import Changed, Removed
from services.errors import InvalidRequest, ModelInvalid, ModelNotFound, ModelNotReady, Unsupported
from services.models.hub.names import known_name, tagged
from services.models.runtimes import CPU
from services.models.status import MemoryStatus, Status
from services.rest.ollama import facade, lines, timestamp
from services.rest.openai.body import decode, json_body
from services.rpc.call import Call

SECONDS = 30.0
VERSION = "0.13.0"  # of Ollama, whose API this is; clients expect three numbers
FOREVER = "2200-01-01T00:00:00Z"  # the end of a model's stay if nothing ends it; clients expect a time
# Ollama's words for what a model can do. Tools work with nearly every chat template (services/text/parsers/dialect.py).
_CAPABILITIES = {"chat": ("completion", "tools"), "vision": ("vision",), "embeddings": ("embedding",)}


class NameBody(msgspec.Struct):
    """The body of a request about one model. `name` is the older word for `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None

    def required(self) -> str:
        """Returns the name. Raises InvalidRequest if there is none."""
        if name := self.model or self.name:
            return name
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")


class PullBody(NameBody, kw_only=True):
    """The body of POST /api/pull."""

    stream: bool | None = None


class OllamaModelsFacade(models_service_pb2_grpc.ModelsServiceServicer):
    """Ollama's model endpoints on top of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @facade(SECONDS, scope="")
    async def ListTags(  # noqa: N802
        self, request: models_service_pb2.ListTagsRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Lists the ready models under their ids and aliases, those changed last first."""
        views = sorted(self._usable(), key=lambda view: -view.desired.updated)
        return json_body({"models": [_tag(view, name) for view in views for name in view.registration.names]})

    @facade(SECONDS, scope="")
    async def ListRunning(  # noqa: N802
        self, request: models_service_pb2.ListRunningRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Lists the models in memory under their ids."""
        return json_body({"models": [_running(view, loaded) for view in self._usable() if (loaded := _loaded(view))]})

    @facade(SECONDS, scope="")
    async def GetVersion(  # noqa: N802
        self, request: models_service_pb2.GetVersionRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Returns the version of Ollama whose API this is."""
        return json_body({"version": VERSION})

    @facade(SECONDS, scope="")
    async def ShowModel(  # noqa: N802
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Returns one ready model."""
        name = decode(request, NameBody).required()
        view = visible(self._catalog.views, known_name(name, self._catalog.views.knows))
        call.model = view.id
        if not view.serving:
            why = f": {current_caller().shown(view.reason)}" if view.reason else ""
            raise ModelNotFound(f"The model `{name}` cannot be used: it is {view.state}{why}", param="model")
        return json_body(_shown(view, name))

    @facade(scope=ADMIN)
    async def PullModel(  # type: ignore[override]  # noqa: N802 (it writes, it does not yield)
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> None:
        """Registers a model of the hub, and sends its progress until it is ready. If the caller leaves, it goes on."""
        given = decode(request, PullBody)
        view = await self._catalog.pull(known_name(given.required(), self._catalog.views.knows))
        call.model = view.id
        last = {"status": "success"}
        if given.stream is not False:
            await call.send(lines(({"status": "pulling manifest"},)))
        async for line in progress(self._catalog, view.id):
            if given.stream is not False:
                await call.send(lines((line,)))
        await call.send(json_body(last) if given.stream is False else lines((last,)))

    @facade(SECONDS, scope=ADMIN)
    async def DeleteModel(  # noqa: N802
        self, request: httpbody_pb2.HttpBody, call: Call
    ) -> httpbody_pb2.HttpBody:
        """Deletes a model, named by its id."""
        name = known_name(decode(request, NameBody).required(), self._catalog.views.knows)
        view = self._catalog.views.get(name)
        if view.id != name:
            what = f"`{name}` is an alias of the model `{view.id}`: to delete that model, name its id"
            raise InvalidRequest(what, param="model")
        await self._catalog.delete(view.id)
        return json_body({"status": "success"})

    def _usable(self) -> Iterator[ModelView]:
        """Yields the models that the caller can use with this API."""
        for view in all_visible(self._catalog.views):
            if view.serving and not _CAPABILITIES.keys().isdisjoint(view.desired.facts.capabilities):
                yield view


async def progress(catalog: Catalog, model_id: str) -> AsyncIterator[dict[str, Any]]:
    """Yields lines about a model that is being prepared, in Ollama's words, and ends when it is ready.

    Raises:
        ModelInvalid, Unsupported: it cannot be served; the message says why.
        ModelNotFound: it was deleted.
        ModelNotReady: the catalog stops.
    """
    last: dict[str, Any] = {}
    with catalog.watchers.watch(None, statuses=True) as watch:
        while event := await watch.next():
            if isinstance(event, Removed) and event.model_id == model_id:
                break
            if not isinstance(event, Changed) or event.view.id != model_id:
                continue
            if event.view.serving:
                return
            line = _stage(event.view)
            if line and line != last:
                last = line
                yield line
        else:
            raise ModelNotReady("the catalog is stopping", retry_after=2)
    raise ModelNotFound(f"The model `{model_id}` was deleted.", param="model")


def _stage(view: ModelView) -> dict[str, Any]:
    """Builds the line about a model that is not ready; empty: there is nothing to tell."""
    reason = current_caller().shown(view.reason)
    if view.state == "failed":
        raise ModelInvalid(reason)
    if view.state == "unsupported":
        raise Unsupported(reason)
    if view.state == "downloading":
        digest = view.desired.manifest.digest
        done = max((status.done_bytes for _, status in view.replicas), default=0)
        line = {"status": f"pulling {digest[:12]}", "digest": f"sha256:{digest}", "total": view.desired.facts.size}
        return {**line, "completed": done}
    if view.state == "verifying":
        return {"status": "verifying sha256 digest"}
    return {"status": f"waiting: {reason}"} if reason else {}


def _tag(view: ModelView, name: str) -> dict[str, Any]:
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": timestamp(view.desired.updated),
        "size": view.desired.facts.size,
        "digest": view.desired.manifest.digest,
        "details": _details(view),
    }


def _details(view: ModelView) -> dict[str, Any]:
    facts = view.desired.facts
    return {
        "parent_model": "",
        "format": facts.format,
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": "",
        "quantization_level": facts.quantization or quantization_of(view.desired.manifest.primary),
    }


def _loaded(view: ModelView) -> list[Status]:
    """Returns the states of the replicas that have a model in memory."""
    return [status for _, status in view.replicas if status.memory and not status.memory.loading]


def _expires(memory: list[tuple[str, MemoryStatus]]) -> str:
    """Returns when the last replica unloads a model that stays idle."""
    if all(each.expires for _, each in memory):
        return timestamp(max(each.expires for _, each in memory))
    return FOREVER


def _running(view: ModelView, loaded: list[Status]) -> dict[str, Any]:
    memory = [(status.device, status.memory) for status in loaded if status.memory]
    return {
        "name": tagged(view.id),
        "model": tagged(view.id),
        "size": sum(each.reserved for _, each in memory),
        "size_vram": sum(max(0, each.reserved - each.host) for device, each in memory if device != CPU),
        "digest": view.desired.manifest.digest,
        "details": _details(view),
        "expires_at": _expires(memory),
        "context_length": _context(view),
    }


def _shown(view: ModelView, name: str) -> dict[str, Any]:
    facts = view.desired.facts
    source = shown_source(view.desired.source)
    info: dict[str, Any] = {"general.architecture": facts.architecture, "general.basename": name}
    if context := _context(view):
        info[f"{facts.architecture}.context_length"] = context
    return {
        "modelfile": f"FROM {source or view.id}\n",
        "parameters": "",
        "template": "",
        "details": _details(view),
        "model_info": info,
        "capabilities": [word for able, words in _CAPABILITIES.items() if able in facts.capabilities for word in words],
        "modified_at": timestamp(view.desired.updated),
    }


def _context(view: ModelView) -> int:
    """Returns the context in tokens; 0: unknown."""
    return view.desired.engine.context_tokens or view.desired.facts.context_tokens
