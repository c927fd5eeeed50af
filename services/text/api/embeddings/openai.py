"""OpenAI's Embeddings, as JSON: requests are read and checked, responses are built in pieces.

Reference: https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import msgspec
from google.api import httpbody_pb2

from services.errors import InvalidRequest
from services.rest.openai import body
from services.text.embeddings import Embedding, EmbeddingRequest, Input, check, numbers

PIECE_BYTES = 256 * 1024  # a long body is sent in pieces of this size, so that other requests run in between
_FORMATS = ("float", "base64")
_encode = msgspec.json.Encoder().encode


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
        raise InvalidRequest("'input' must be a text, tokens, a list of texts or a list of tokens.", param="input")
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
