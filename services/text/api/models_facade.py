"""GET /v1/models and /v1/models/{id} in OpenAI's shape: what is ready, and nothing else."""

from __future__ import annotations

from typing import Any

from allm.openai.v1 import models_service_pb2, models_service_pb2_grpc
from google.api import httpbody_pb2

from services.models.store import ModelStore, StoredModel
from services.rpc.call import Call, facade
from services.rpc.errors import ModelNotFound
from services.rpc.openai.body import json_body


class ModelsFacade(models_service_pb2_grpc.ModelsServiceServicer):
    """OpenAI's model endpoints over the static list."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store

    @facade()
    async def ListModels(  # noqa: N802
        self, request: models_service_pb2.ListModelsRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """All models that can be used, under their ids and aliases."""
        names = [name for model in self._store if model.runtime for name in (model.id, *model.aliases)]
        return json_body({"object": "list", "data": [_object(self._store.get(name), name) for name in names]})

    @facade()
    async def GetModel(  # noqa: N802
        self, request: models_service_pb2.GetModelRequest, call: Call
    ) -> httpbody_pb2.HttpBody:
        """One model."""
        model = self._store.get(request.id)
        if model.runtime is None:
            raise ModelNotFound(f"The model `{request.id}` cannot be used: {model.problem}", param="model")
        return json_body(_object(model, request.id))


def _object(model: StoredModel, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": model.created, "owned_by": "allm"}
