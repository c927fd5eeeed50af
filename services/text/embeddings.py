"""Embeddings: texts in, vectors out. The core that both wire formats call."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from services.auth.caller import current_caller
from services.errors import InvalidRequest
from services.text.manager import TextModels

Input = str | list[int]
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """What is to be embedded."""

    model: str  # id or alias
    inputs: tuple[Input, ...]  # texts, or tokens of the model's own, special ones included
    dimensions: int | None = None  # numbers of a vector, from its beginning; None: all
    param: str = "input[]"  # what the caller calls an input, with `[]` for its index


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The vectors of a request, in the order of its inputs; each is float32 in little-endian order."""

    model_id: str
    vectors: list[bytes]
    tokens: int  # of all inputs, special ones included


class Embeddings:
    """Embeds texts."""

    def __init__(self, models: TextModels) -> None:
        self._models = models

    async def model_id(self, name: str) -> str:
        """The id behind an id or alias. Raises ModelNotFound."""
        return (await self._models.find(name)).id

    async def embed(self, request: EmbeddingRequest, client: str) -> Embedding:
        """All vectors of a request; giving up stops the model.

        Raises:
            ModelNotFound, ModelInvalid, ModelNotReady, Unsupported: the model cannot be served, or does not embed.
            InvalidRequest: an input does not fit the model, or vectors are shorter than `dimensions`.
            Overloaded: the queue is full, or the caller's key has used up its tokens of the minute.
        """
        stored = await self._models.find(request.model)
        await current_caller().admit()
        async with self._models.encoder(stored) as model:
            vectors, tokens = await model.embed(client, request.inputs, request.dimensions or 0, request.param)
        return Embedding(model_id=stored.id, vectors=vectors, tokens=tokens)


def numbers(vector: bytes) -> list[float]:
    """A vector that is float32 in little-endian order, as every machine that runs models has it."""
    return array("f", vector).tolist()


def check(request: EmbeddingRequest) -> None:
    """Raises InvalidRequest for the first thing that no model could do."""
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
    if request.dimensions is not None and request.dimensions < 1:
        raise InvalidRequest(f"'dimensions' must be 1 or more, not {request.dimensions}.", param="dimensions")
