"""The preparation of a reranker's requests: each document with its query is one input of the embedding loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from services.text.engine.embedding_loop import Encoder, Tokens, check_size, check_total, prepared_job
from services.text.engine.messages import LEAST_INPUT_BYTES, USUAL_BYTES, Rank
from services.text.engine.preparation import Preparing
from services.worker.messages import EngineError


class Reranker(Encoder, Protocol):
    """A loaded reranker. The vector of an input is its relevance, from 0 to 1."""

    def pair(self, query: str, document: str, document_tokens: int) -> Tokens:
        """Returns the input of a query and a document, of which `document_tokens` are kept; 0: all."""


def prepare_pairs(reranker: Reranker, rank: Rank, send: Callable[[object], None]) -> Preparing:
    """Tokenizes a request's pairs one by one. Sends a refusal immediately."""
    return (yield from prepared_job(rank, _tokenized(reranker, rank), 0, send))


def _tokenized(reranker: Reranker, rank: Rank) -> Generator[None, None, list[Tokens]]:
    inputs: list[Tokens] = []
    total, limit, most = 0, reranker.ready.context_tokens, rank.document_tokens
    for index, query in enumerate(rank.queries):
        check_size(query, limit, rank.query_param.replace("[]", f"[{index}]"))
    for index, document in enumerate(rank.documents):
        name = rank.param.replace("[]", f"[{index}]")
        if index:
            yield
        if most:
            document = document[: max(LEAST_INPUT_BYTES, most * USUAL_BYTES)]  # noqa: PLW2901 (bounds the work)
        else:
            check_size(document, limit, name)
        tokens = reranker.pair(rank.queries[index % len(rank.queries)], document, most)
        if len(tokens) > limit:
            message = (
                f"'{name}' has {len(tokens)} tokens together with its query, but this model takes at most {limit}; "
                "inputs are not truncated."
            )
            raise EngineError("CONTEXT_LENGTH_EXCEEDED", message, name)
        total += len(tokens)
        check_total(total, rank.param)
        inputs.append(tokens)
    return inputs
