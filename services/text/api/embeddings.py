"""Vectors of texts: OpenAI's POST /v1/embeddings, whose response is built in pieces, and allm.text.v1.EmbeddingService.

Reference: https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

import asyncio
import base64
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
from allm.text.v1 import embedding_pb2, embedding_service_pb2, embedding_service_pb2_grpc
from google.api import httpbody_pb2

from services.auth.caller import current_caller
from services.errors import InvalidRequest
from services.models.store import StoredModel
from services.rest.openai import body
from services.rest.openai.body import JSON
from services.rpc.call import Call, typed
from services.text.api.other_parameters import unknown_parameters
from services.text.engine.messages import MAX_EMBEDDED_TOKENS, USUAL_BYTES
from services.text.manager import TextModels

PIECE_BYTES = 256 * 1024  # a long body is sent in pieces of this size, so that other requests run in between
_FORMATS = ("float", "base64")
_encode = msgspec.json.Encoder().encode
AT_ONCE = 64  # vectors added to a message before the event loop runs other requests
MAX_INPUTS = 2048

Input = str | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """A request to embed one or more inputs."""

    model: str  # id or alias
    inputs: tuple[Input, ...]  # texts, or token ids of the model, special tokens included
    dimensions: int | None = None  # length of the vectors, which are truncated to it; None: full length
    param: str = "input[]"  # the name of an input in errors, with `[]` for its index
    truncate: bool = False  # whether texts that are too long are cut at their end; otherwise they are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The vectors of a request, in the order of its inputs; each is little-endian float32."""

    model_id: str
    vectors: list[bytes]
    tokens: int  # of all inputs, special tokens included


class Embeddings:
    """Embeds texts."""

    def __init__(self, models: TextModels) -> None:
        self._models = models

    async def embed(
        self,
        stored: StoredModel,
        request: EmbeddingRequest,
        client: str,
        loaded: Callable[[], None] = lambda: None,
    ) -> Embedding:
        """Computes all vectors of a request; cancelling the call stops the model. Calls `loaded` once it is in memory.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported: the model cannot be served, or does not embed.
            InvalidRequest: an input does not fit the model, or vectors are shorter than `dimensions`.
            Overloaded: the queue is full, or the caller's key has exhausted its tokens per minute.
        """
        await current_caller().admit()
        async with self._models.encoder(stored) as model:
            loaded()
            vectors, tokens = await model.embed(
                client, request.inputs, request.dimensions or 0, request.param, truncate=request.truncate
            )
        return Embedding(model_id=stored.id, vectors=vectors, tokens=tokens)


def numbers(vector: bytes) -> list[float]:
    """Decodes a little-endian float32 vector; every platform that runs models is little-endian."""
    return array("f", vector).tolist()


def check(request: EmbeddingRequest) -> None:
    """Raises InvalidRequest for the first value that is invalid for every model."""
    inputs = request.param.removesuffix("[]")
    if not request.model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    if not 1 <= len(request.inputs) <= MAX_INPUTS:
        message = f"'{inputs}' must have 1 to {MAX_INPUTS} entries, not {len(request.inputs)}."
        raise InvalidRequest(message, param=inputs)
    for index, content in enumerate(request.inputs):
        if not content:
            name = request.param.replace("[]", f"[{index}]")
            raise InvalidRequest(f"'{name}' is empty: there is nothing to embed.", param=name)
    tokens = sum(len(content) / USUAL_BYTES if isinstance(content, str) else len(content) for content in request.inputs)
    if tokens > MAX_EMBEDDED_TOKENS:
        message = f"'{inputs}' has more than {MAX_EMBEDDED_TOKENS} tokens in all; send it as several requests."
        raise InvalidRequest(message, param=inputs)
    if request.dimensions is not None and request.dimensions < 1:
        raise InvalidRequest(f"'dimensions' must be 1 or more, not {request.dimensions}.", param="dimensions")


class EmbeddingsRequest(msgspec.Struct):
    """The body of POST /v1/embeddings. `user` is accepted and has no effect."""

    model: str
    input: str | list[str | int | list[int]] | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None


def read_request(raw: httpbody_pb2.HttpBody) -> tuple[EmbeddingsRequest, EmbeddingRequest]:
    """Reads a request. Returns the decoded body and the core's request. Raises InvalidRequest, naming the parameter."""
    request = body.decode(raw, EmbeddingsRequest)
    if request.encoding_format not in (None, *_FORMATS):
        message = f"'encoding_format' must be {' or '.join(_FORMATS)}, not {request.encoding_format[:40]!r}."
        raise InvalidRequest(message, param="encoding_format")
    inputs, param = _inputs(request.input)
    embedding_request = EmbeddingRequest(model=request.model, inputs=inputs, dimensions=request.dimensions, param=param)
    check(embedding_request)
    return request, embedding_request


def _inputs(given: str | list[str | int | list[int]] | None) -> tuple[tuple[Input, ...], str]:
    """Returns the inputs, and the parameter name that errors use for one of them."""
    if given is None:
        raise InvalidRequest("Missing required parameter: 'input'.", param="input")
    if isinstance(given, str):
        return (given,), "input"
    tokens = [part for part in given if isinstance(part, int)]
    if tokens and len(tokens) == len(given):
        return (tokens,), "input"
    inputs = tuple(part for part in given if not isinstance(part, int))
    if tokens or len({type(part) for part in inputs}) > 1:
        raise InvalidRequest(
            "'input' must be a string, a list of strings, a list of token ids or a list of such lists.", param="input"
        )
    return inputs, "input[]"


def body_pieces(embedding: Embedding, encoding: str | None) -> Iterator[bytes]:
    """Yields the response body in pieces of at least PIECE_BYTES."""
    piece = bytearray(b'{"object":"list","data":[')
    for index, vector in enumerate(embedding.vectors):
        encoded = base64.b64encode(vector).decode() if encoding == "base64" else numbers(vector)
        piece += b"," * (index > 0) + _encode({"object": "embedding", "index": index, "embedding": encoded})
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    usage = {"prompt_tokens": embedding.tokens, "total_tokens": embedding.tokens}
    yield bytes(piece + b'],"model":' + _encode(embedding.model_id) + b',"usage":' + _encode(usage) + b"}")


async def create_embedding(models: TextModels, embeddings: Embeddings, raw: httpbody_pb2.HttpBody, call: Call) -> None:
    """Sends one JSON body in pieces."""
    given, request = read_request(raw)
    call.ignore_unknown(unknown_parameters(raw, EmbeddingsRequest))
    stored = await models.find(request.model)
    call.model = stored.id
    embedding = await embeddings.embed(stored, request, call.client)
    call.facts["usage"] = {"inputs": len(request.inputs), "prompt": embedding.tokens}
    for piece in body_pieces(embedding, given.encoding_format):
        await call.send(httpbody_pb2.HttpBody(content_type=JSON, data=piece))


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
            inputs=tuple(_typed_input(each, f"inputs[{index}]") for index, each in enumerate(request.inputs)),
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


def _typed_input(message: embedding_pb2.EmbeddingInput, param: str) -> Input:
    kind = message.WhichOneof("input")
    if kind is None:
        raise InvalidRequest(f"'{param}' has no input set.", param=param)
    return message.text if kind == "text" else list(message.tokens.ids)
