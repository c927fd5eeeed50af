"""allm.models.v1.ModelService over the static list: every model, with its state."""

from __future__ import annotations

from allm.models.v1 import model_pb2, model_service_pb2, model_service_pb2_grpc
from google.protobuf import timestamp_pb2

from services.models.store import ModelStore, StoredModel
from services.rpc.call import Call, typed
from services.rpc.errors import InvalidRequest, Unsupported
from services.text.manager import TextManager

_MODALITIES = {
    "text": model_pb2.MODALITY_TEXT,
    "audio": model_pb2.MODALITY_AUDIO,
    "image": model_pb2.MODALITY_IMAGE,
}
_FORMATS = {"gguf": model_pb2.FORMAT_GGUF}


class ModelServicer(model_service_pb2_grpc.ModelServiceServicer):
    """Tells which models there are."""

    def __init__(self, store: ModelStore, manager: TextManager) -> None:
        self._store = store
        self._manager = manager

    @typed()
    async def GetModel(  # noqa: N802
        self, request: model_service_pb2.GetModelRequest, call: Call
    ) -> model_service_pb2.GetModelResponse:
        """One model, whatever its state."""
        if not request.id:
            raise InvalidRequest("Missing required parameter: 'id'.", param="id")
        return model_service_pb2.GetModelResponse(model=self._message(self._store.get(request.id)))

    @typed()
    async def ListModels(  # noqa: N802
        self, request: model_service_pb2.ListModelsRequest, call: Call
    ) -> model_service_pb2.ListModelsResponse:
        """All models, by id."""
        return model_service_pb2.ListModelsResponse(models=[self._message(model) for model in self._store])

    def _message(self, model: StoredModel) -> model_pb2.Model:
        message = model_pb2.Model(
            id=model.id,
            aliases=model.aliases,
            runtime=model.runtime.name if model.runtime else "",
            create_time=timestamp_pb2.Timestamp(seconds=model.created),
            state=self._state(model),
            reason=str(model.problem or ""),
        )
        if model.descriptor:
            message.modality = _MODALITIES[model.descriptor.modality]
            message.format = _FORMATS[model.descriptor.format]
            message.architecture = model.descriptor.architecture
            message.capabilities.extend(sorted(model.descriptor.capabilities))
            message.size_bytes = model.descriptor.size
            message.context_tokens = model.descriptor.context_tokens
        return message

    def _state(self, model: StoredModel) -> model_pb2.ModelState.ValueType:
        if isinstance(model.problem, Unsupported):
            return model_pb2.MODEL_STATE_UNSUPPORTED
        if model.problem:
            return model_pb2.MODEL_STATE_FAILED
        return model_pb2.MODEL_STATE_LOADED if self._manager.loaded(model.id) else model_pb2.MODEL_STATE_READY
