"""Preparation of embedding requests: tokenizes and checks their inputs while batches run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from services.text.engine.embedding_loop import EmbeddingArrival
from services.text.engine.encoder import Encoder, Tokens
from services.text.engine.messages import Accepted, Embed
from services.worker.messages import EngineError, Refused

MAX_REQUEST_TOKENS = 300_000  # of all inputs together


def prepare(encoder: Encoder, embed: Embed, send: Callable[[object], None]) -> EmbeddingArrival | None:
    """Tokenizes a request's inputs. Sends a refusal immediately; never truncates an input silently."""
    try:
        inputs = _tokenized(encoder, embed)
    except EngineError as error:
        send(Refused(request=embed.request, code=error.code, message=error.message, param=error.param))
        return None
    send(Accepted(embed.request, sum(map(len, inputs))))
    return EmbeddingArrival(embed.request, embed.client, inputs, embed.dimensions, deadline=embed.deadline)


def _tokenized(encoder: Encoder, embed: Embed) -> list[Tokens]:
    inputs: list[Tokens] = []
    total, limit = 0, encoder.ready.context_tokens
    for index, content in enumerate(embed.inputs):
        name = embed.param.replace("[]", f"[{index}]")
        tokens = encoder.tokenize(content) if isinstance(content, str) else _given(encoder, content, name)
        if not len(tokens):
            raise EngineError("INVALID_REQUEST", f"'{name}' has no tokens.", name)
        if len(tokens) > limit:
            message = f"'{name}' has {len(tokens)} tokens, but this model takes at most {limit}; nothing is cut off."
            raise EngineError("CONTEXT_LENGTH_EXCEEDED", message, name)
        total += len(tokens)
        if total > MAX_REQUEST_TOKENS:
            param = embed.param.removesuffix("[]")
            message = f"'{param}' has more than {MAX_REQUEST_TOKENS} tokens in all; send it as several requests."
            raise EngineError("INVALID_REQUEST", message, param)
        inputs.append(tokens)
    return inputs


def _given(encoder: Encoder, tokens: list[int], name: str) -> Tokens:
    vocabulary = encoder.ready.vocabulary
    for token in tokens:
        if not 0 <= token < vocabulary:
            message = f"'{name}' names token {token}; this model's tokens are 0 to {vocabulary - 1}."
            raise EngineError("INVALID_REQUEST", message, name)
    return np.array(tokens, np.int32)
