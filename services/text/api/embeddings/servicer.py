"""The servicer of allm.text.v1.EmbeddingService."""

from __future__ import annotations

import asyncio

from allm.text.v1 import embedding_pb2, embedding_service_pb2, embedding_service_pb2_grpc

from services.errors import InvalidRequest
from services.rpc.call import Call, typed
from services.text.embeddings import EmbeddingRequest, Embeddings, Input, check, numbers
from services.text.manager import TextModels

AT_ONCE = 64  # vectors added to a message before the event loop runs other requests


class EmbeddingServicer(embedding_service_pb2_grpc.EmbeddingServiceServicer):
    """The typed embeddings API."""

    def __init__(self, models: TextModels, embeddings: Embeddings) -> None:
        self._models = models
        self._embeddings = embeddings

    @typed(operation="embeddings")
    async def CreateEmbeddings(  # noqa: N802
        self, request: embedding_service_pb2.CreateEmbeddingsRequest, call: Call
    ) -> embedding_service_pb2.CreateEmbeddingsResponse:
        """Computes embedding vectors of the inputs."""
        embedding_request = EmbeddingRequest(
            model=request.model,
            inputs=tuple(_input(each, f"inputs[{index}]") for index, each in enumerate(request.inputs)),
            dimensions=request.dimensions if request.HasField("dimensions") else None,
            param="inputs[]",
        )
        check(embedding_request)
        stored = await self._models.find(embedding_request.model)
        call.model = stored.id
        embedding = await self._embeddings.embed(stored, embedding_request, call.client)
        call.facts["usage"] = {"inputs": len(embedding_request.inputs), "prompt": embedding.tokens}
        response = embedding_service_pb2.CreateEmbeddingsResponse(
            model=embedding.model_id, input_tokens=embedding.tokens
        )
        for index, vector in enumerate(embedding.vectors):
            response.embeddings.add(index=index).vector.extend(numbers(vector))
            if index % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        return response


def _input(message: embedding_pb2.EmbeddingInput, param: str) -> Input:
    kind = message.WhichOneof("input")
    if kind is None:
        raise InvalidRequest(f"'{param}' has no input set.", param=param)
    return message.text if kind == "text" else list(message.tokens.ids)
