"""Reranking: POST /v1/rerank in Cohere's and Jina's form, POST /v1/score in vLLM's, and allm.text.v1.RerankService.

References: https://docs.cohere.com/reference/rerank (v1 and v2), https://jina.ai/reranker,
https://docs.vllm.ai/en/latest/models/pooling_models.html (score). Their response objects differ in names only, so one
object has the fields of all.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from allm.text.v1 import rerank_service_pb2, rerank_service_pb2_grpc
from google.api import httpbody_pb2
from msgspec import Struct

from services.auth.caller import current_caller
from services.errors import InvalidRequest
from services.models.store import StoredModel
from services.rest.openai import body
from services.rest.openai.body import json_body
from services.rpc.call import Call, typed
from services.text.api.openai_sampling import refuse_others
from services.text.api.other_parameters import unknown_parameters
from services.text.engine.messages import MAX_EMBEDDED_TOKENS, USUAL_BYTES
from services.text.manager import TextModels

MAX_DOCUMENTS = 2048
MAX_DOCUMENT_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingRequest:
    """A request to score documents: against one query, or each against its own."""

    model: str  # id or alias
    queries: tuple[str, ...]  # one, or as many as documents
    documents: tuple[str, ...]
    document_tokens: int | None = None  # length to which documents are cut; None: they are not
    params: tuple[str, str] = ("query", "documents[]")  # the caller's names of a query and a document, `[]`: the index


class Reranking:
    """Scores documents."""

    def __init__(self, models: TextModels) -> None:
        self._models = models

    async def scores(self, stored: StoredModel, request: RankingRequest, client: str) -> tuple[list[float], int]:
        """Returns the relevance of each document, 0 to 1, and the tokens of all pairs; cancelling stops the model.

        Raises:
            ModelInvalid, ModelNotReady, Unsupported: the model cannot be served, or does not rerank.
            InvalidRequest: a pair does not fit the model.
            Overloaded: the queue is full, or the caller's key has exhausted its tokens per minute.
        """
        await current_caller().admit()
        async with self._models.reranker(stored) as model:
            return await model.rank(
                client, request.queries, request.documents, request.document_tokens or 0, request.params
            )


def check(request: RankingRequest) -> None:
    """Raises InvalidRequest for the first value that is invalid for every model."""
    query, document = request.params
    many = document.removesuffix("[]")
    if not request.model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    if not 1 <= len(request.documents) <= MAX_DOCUMENTS:
        message = f"'{many}' must have 1 to {MAX_DOCUMENTS} entries, not {len(request.documents)}."
        raise InvalidRequest(message, param=many)
    if len(request.queries) not in (1, len(request.documents)):
        one = query.removesuffix("[]")
        message = f"'{one}' must have one entry or as many as '{many}', not {len(request.queries)}."
        raise InvalidRequest(message, param=one)
    for param, texts in ((query, request.queries), (document, request.documents)):
        for index, text in enumerate(texts):
            if not text:
                name = param.replace("[]", f"[{index}]")
                raise InvalidRequest(f"'{name}' is empty: there is nothing to score.", param=name)
    asked = sum(map(len, request.queries)) * (len(request.documents) // len(request.queries))
    if (asked + sum(map(len, request.documents))) / USUAL_BYTES > MAX_EMBEDDED_TOKENS:
        message = f"'{many}' has more than {MAX_EMBEDDED_TOKENS} tokens in all; send it as several requests."
        raise InvalidRequest(message, param=many)
    _check_positive("max_tokens_per_doc", request.document_tokens)


def _check_positive(name: str, number: int | None) -> None:
    if number is not None and not 1 <= number <= MAX_DOCUMENT_TOKENS:
        raise InvalidRequest(f"'{name}' must be 1 to {MAX_DOCUMENT_TOKENS}, not {number}.", param=name)


def ranked(scores: Sequence[float], most: int | None) -> list[tuple[int, float]]:
    """Returns the indexes and scores of the most relevant documents, best first; equal ones in the caller's order."""
    best = sorted(enumerate(scores), key=lambda pair: -pair[1])
    return best if most is None else best[:most]


class RerankBody(Struct, kw_only=True):
    """The body of POST /v1/rerank. The last group of fields is declared only to be rejected."""

    model: str
    query: str
    documents: list[str | dict[str, Any]]
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    rank_fields: list[str] | None = None  # Cohere's v1: the fields of a document that are read, in this order

    max_chunks_per_doc: int | None = None
    priority: int | None = None


def read_rerank(raw: httpbody_pb2.HttpBody) -> tuple[RerankBody, RankingRequest]:
    """Reads a request. Returns the decoded body and the core's request.

    Raises:
        InvalidRequest: a type or value is wrong; the error names the parameter.
        Unsupported: a parameter is not supported; the error names it.
    """
    request = body.decode(raw, RerankBody)
    refuse_others([("max_chunks_per_doc", request.max_chunks_per_doc, ()), ("priority", request.priority, (0,))])
    _check_positive("top_n", request.top_n)
    if len(request.documents) > MAX_DOCUMENTS:  # before they are converted
        message = f"'documents' must have 1 to {MAX_DOCUMENTS} entries, not {len(request.documents)}."
        raise InvalidRequest(message, param="documents")
    documents = [_text(one, request.rank_fields, f"documents[{at}]") for at, one in enumerate(request.documents)]
    ranking = RankingRequest(
        model=request.model,
        queries=(request.query,),
        documents=tuple(documents),
        document_tokens=request.max_tokens_per_doc,
    )
    check(ranking)
    return request, ranking


def _text(document: str | dict[str, Any], fields: list[str] | None, param: str) -> str:
    """Returns the text of a document: `text` of an object or, with rank_fields, a line per field."""
    if isinstance(document, str):
        return document
    found = {name: document.get(name) for name in fields or ["text"]}
    for name, value in found.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"'{param}.{name}' must be a string.", param=f"{param}.{name}")
    if fields is None:
        return str(found["text"])
    return "\n".join(f"{name}: {value}" for name, value in found.items())


def rerank_object(request: RerankBody, model_id: str, scores: Sequence[float], tokens: int) -> dict[str, Any]:
    """Builds the response to a rerank request."""
    results: list[dict[str, Any]] = []
    for index, score in ranked(scores, request.top_n):
        result: dict[str, Any] = {"index": index, "relevance_score": score}
        if request.return_documents:
            document = request.documents[index]
            result["document"] = {"text": document} if isinstance(document, str) else document
        results.append(result)
    return {
        "id": f"rerank-{secrets.token_hex(16)}",
        "object": "list",
        "model": model_id,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}},
    }


class ScoreBody(Struct, kw_only=True):
    """The body of POST /v1/score. The last group of fields is declared only to be rejected."""

    model: str
    text_1: str | list[str]
    text_2: str | list[str]

    truncate_prompt_tokens: int | None = None


def read_score(raw: httpbody_pb2.HttpBody) -> RankingRequest:
    """Reads a request. Raises as `read_rerank`."""
    request = body.decode(raw, ScoreBody)
    refuse_others([("truncate_prompt_tokens", request.truncate_prompt_tokens, ())])
    first, second = request.text_1, request.text_2
    ranking = RankingRequest(
        model=request.model,
        queries=(first,) if isinstance(first, str) else tuple(first),
        documents=(second,) if isinstance(second, str) else tuple(second),
        params=(
            "text_1" if isinstance(first, str) else "text_1[]",
            "text_2" if isinstance(second, str) else "text_2[]",
        ),
    )
    check(ranking)
    return ranking


def score_object(model_id: str, scores: Sequence[float], tokens: int) -> dict[str, Any]:
    """Builds the response to a score request."""
    return {
        "id": f"score-{secrets.token_hex(16)}",
        "object": "list",
        "created": int(time.time()),
        "model": model_id,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


async def create_rerank(models: TextModels, reranking: Reranking, raw: httpbody_pb2.HttpBody, call: Call) -> None:
    """Sends one JSON body."""
    request, ranking = read_rerank(raw)
    call.ignore_unknown(unknown_parameters(raw, RerankBody))
    stored, scores, tokens = await _scored(models, reranking, ranking, call)
    await call.send(json_body(rerank_object(request, stored.id, scores, tokens)))


async def create_score(models: TextModels, reranking: Reranking, raw: httpbody_pb2.HttpBody, call: Call) -> None:
    """Sends one JSON body."""
    ranking = read_score(raw)
    call.ignore_unknown(unknown_parameters(raw, ScoreBody))
    stored, scores, tokens = await _scored(models, reranking, ranking, call)
    await call.send(json_body(score_object(stored.id, scores, tokens)))


async def _scored(
    models: TextModels, reranking: Reranking, request: RankingRequest, call: Call
) -> tuple[StoredModel, list[float], int]:
    """Returns the model, the scores and the tokens of a request."""
    stored = await models.find(request.model)
    call.model = stored.id
    scores, tokens = await reranking.scores(stored, request, call.client)
    call.facts["usage"] = {"inputs": len(request.documents), "prompt": tokens}
    return stored, scores, tokens


class RerankServicer(rerank_service_pb2_grpc.RerankServiceServicer):
    """The typed reranking API."""

    def __init__(self, models: TextModels, reranking: Reranking) -> None:
        self._models = models
        self._reranking = reranking

    @typed(operation="rerank")
    async def Rerank(  # noqa: N802
        self, request: rerank_service_pb2.RerankRequest, call: Call
    ) -> rerank_service_pb2.RerankResponse:
        """Ranks documents by their relevance to a query."""
        most = request.top_n if request.HasField("top_n") else None
        _check_positive("top_n", most)
        kept = request.max_tokens_per_document if request.HasField("max_tokens_per_document") else None
        _check_positive("max_tokens_per_document", kept)
        ranking = RankingRequest(
            model=request.model, queries=(request.query,), documents=tuple(request.documents), document_tokens=kept
        )
        check(ranking)
        stored, scores, tokens = await _scored(self._models, self._reranking, ranking, call)
        response = rerank_service_pb2.RerankResponse(model=stored.id, input_tokens=tokens)
        for index, score in ranked(scores, most):
            text = request.documents[index] if request.return_documents else ""
            response.results.add(index=index, relevance_score=score, document=text)
        return response

    @typed(operation="rerank")
    async def Score(  # noqa: N802
        self, request: rerank_service_pb2.ScoreRequest, call: Call
    ) -> rerank_service_pb2.ScoreResponse:
        """Scores pairs of texts."""
        pairs = RankingRequest(
            model=request.model,
            queries=tuple(request.first),
            documents=tuple(request.second),
            params=("first[]", "second[]"),
        )
        check(pairs)
        stored, scores, tokens = await _scored(self._models, self._reranking, pairs, call)
        return rerank_service_pb2.ScoreResponse(model=stored.id, scores=scores, input_tokens=tokens)
