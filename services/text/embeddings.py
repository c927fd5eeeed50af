"""The embeddings core, which both wire formats call: computes vectors of texts."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from services.auth.caller import current_caller
from services.errors import InvalidRequest
from services.models.store import StoredModel
from services.text.engine.messages import MAX_EMBEDDED_TOKENS, USUAL_BYTES
from services.text.manager import TextModels

Input = str | list[int]
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """A request to embed one or more inputs."""

    model: str  # id or alias
    inputs: tuple[Input, ...]  # texts, or token ids of the model, special tokens included
    dimensions: int | None = None  # length of the vectors, which are truncated to it; None: full length
    param: str = "input[]"  # the name of an input in errors, with `[]` for its index


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

    async def embed(self, stored: StoredModel, request: EmbeddingRequest, client: str) -> Embedding:
        """Computes all vectors of a request; cancelling the call stops the model.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported: the model cannot be served, or does not embed.
            InvalidRequest: an input does not fit the model, or vectors are shorter than `dimensions`.
            Overloaded: the queue is full, or the caller's key has exhausted its tokens per minute.
        """
        await current_caller().admit()
        async with self._models.encoder(stored) as model:
            vectors, tokens = await model.embed(client, request.inputs, request.dimensions or 0, request.param)
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
