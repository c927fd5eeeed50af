"""The facade for POST /v1/embeddings."""

from __future__ import annotations

from google.api import httpbody_pb2

from services.rest.openai.body import JSON
from services.rpc.call import Call
from services.text.api.embeddings.openai import body_pieces, read_request
from services.text.embeddings import Embeddings


async def create_embedding(embeddings: Embeddings, request: httpbody_pb2.HttpBody, call: Call) -> None:
    """Sends one JSON body in pieces."""
    asked, wanted = read_request(request)
    call.model = await embeddings.model_id(wanted.model)
    embedding = await embeddings.embed(wanted, call.client)
    call.facts["usage"] = {"inputs": len(wanted.inputs), "prompt": embedding.tokens}
    for piece in body_pieces(embedding, asked.encoding_format):
        await call.send(httpbody_pb2.HttpBody(content_type=JSON, data=piece))
