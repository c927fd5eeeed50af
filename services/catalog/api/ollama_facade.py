"""Ollama's endpoints about models: the text models that answer requests, those in memory, and the details of one.

Names are ids and aliases, shown with a tag, because clients look them up with one. The catalog knows neither the number
of a model's parameters nor its chat template: these fields are empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from allm.ollama.v1 import models_service_pb2, models_service_pb2_grpc
from google.api import httpbody_pb2

from services.auth.caller import current_caller
from services.catalog.api.messages import all_visible, shown_source, visible
from services.catalog.catalog import Catalog
from services.catalog.model_view import ModelView
from services.errors import InvalidRequest, ModelNotFound
from services.models.runtimes import CPU
from services.models.status import Status
from services.rest.ollama import facade, known_name, tagged, timestamp
from services.rest.openai.body import decode, json_body
from services.rpc.call import Call

SECONDS = 30.0
VERSION = "0.13.0"  # of Ollama, whose API this is; clients expect three numbers
FOREVER = "2200-01-01T00:00:00Z"  # the end of a model's stay if nothing ends it; clients expect a time
# Ollama's words for what a model can do. Tools work with nearly every chat template (services/text/parsers/dialect.py).
_CAPABILITIES = {"chat": ("completion", "tools"), "embeddings": ("embedding",)}
QUANTIZATION = re.compile(r"(?:^|[-._])((?:I?Q[1-8](?:_[A-Z0-9]+)*)|BF16|F16|F32|MXFP4)(?=[-._]|$)", re.IGNORECASE)


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

    def _usable(self) -> Iterator[ModelView]:
        """Yields the models that the caller can use with this API."""
        for view in all_visible(self._catalog.views):
            if view.serving and not _CAPABILITIES.keys().isdisjoint(view.desired.facts.capabilities):
                yield view


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
    found = QUANTIZATION.search(view.desired.manifest.primary)
    return {
        "parent_model": "",
        "format": facts.format,
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": "",
        "quantization_level": facts.quantization or (found[1].upper() if found else ""),
    }


def _loaded(view: ModelView) -> list[Status]:
    """Returns the states of the replicas that have a model in memory."""
    return [status for _, status in view.replicas if status.memory and not status.memory.loading]


def _running(view: ModelView, loaded: list[Status]) -> dict[str, Any]:
    memory = [(status.device, status.memory) for status in loaded if status.memory]
    return {
        "name": tagged(view.id),
        "model": tagged(view.id),
        "size": sum(each.reserved for _, each in memory),
        "size_vram": sum(max(0, each.reserved - each.host) for device, each in memory if device != CPU),
        "digest": view.desired.manifest.digest,
        "details": _details(view),
        "expires_at": FOREVER,
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
