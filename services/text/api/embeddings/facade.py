"""The facade for POST /v1/embeddings."""

from __future__ import annotations

from google.api import httpbody_pb2

from services.rest.openai.body import JSON
from services.rpc.call import Call
from services.text.api.embeddings.openai import body_pieces, read_request
from services.text.embeddings import Embeddings
from services.text.manager import TextModels


async def create_embedding(models: TextModels, embeddings: Embeddings, raw: httpbody_pb2.HttpBody, call: Call) -> None:
    """Sends one JSON body in pieces."""
    body, request = read_request(raw)
    stored = await models.find(request.model)
    call.model = stored.id
    embedding = await embeddings.embed(stored, request, call.client)
    call.facts["usage"] = {"inputs": len(request.inputs), "prompt": embedding.tokens}
    for piece in body_pieces(embedding, body.encoding_format):
        await call.send(httpbody_pb2.HttpBody(content_type=JSON, data=piece))
