"""The wire formats of reranking: what requests may say, and the objects that answer them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.api import httpbody_pb2

from services.errors import AllmError, InvalidRequest, Unsupported
from services.text.api.rerank import MAX_DOCUMENTS, ranked, read_rerank, read_score, rerank_object, score_object
from tests.case import case


def raw(**content: Any) -> httpbody_pb2.HttpBody:
    return httpbody_pb2.HttpBody(content_type="application/json", data=json.dumps(content).encode())


def rerank(**changes: Any) -> Any:
    return read_rerank(raw(**{"model": "m", "query": "q", "documents": ["a", "b"], **changes}))


def score(**changes: Any) -> Any:
    return read_score(raw(**{"model": "m", "text_1": "q", "text_2": ["a", "b"], **changes}))


def test_documents_are_texts_or_objects_of_which_named_fields_are_read() -> None:
    for documents, fields, expected in [
        (["a", "b"], None, ("a", "b")),
        ([{"text": "a", "url": 1}, "b"], None, ("a", "b")),
        ([{"title": "t", "body": "b", "x": 1}], ["title", "body"], ("title: t\nbody: b",)),
    ]:
        with case(documents=documents):
            _, request = rerank(documents=documents, rank_fields=fields)
            assert (request.queries, request.documents, request.document_tokens) == (("q",), expected, None)
    assert rerank(max_tokens_per_doc=7)[1].document_tokens == 7


def test_scores_pair_one_text_with_many_or_each_with_its_own() -> None:
    for first, second, queries, documents, params in [
        ("q", "a", ("q",), ("a",), ("text_1", "text_2")),
        ("q", ["a", "b"], ("q",), ("a", "b"), ("text_1", "text_2[]")),
        (["q", "r"], ["a", "b"], ("q", "r"), ("a", "b"), ("text_1[]", "text_2[]")),
    ]:
        with case(first=first, second=second):
            request = score(text_1=first, text_2=second)
            assert (request.queries, request.documents, request.params) == (queries, documents, params)


def test_what_cannot_be_honoured_is_refused_by_name() -> None:
    cases: list[tuple[Any, dict[str, Any], type[AllmError], str]] = [
        (rerank, {"documents": []}, InvalidRequest, "documents"),
        (rerank, {"documents": ["a"] * (MAX_DOCUMENTS + 1)}, InvalidRequest, "documents"),
        (rerank, {"documents": ["a", ""]}, InvalidRequest, "documents[1]"),
        (rerank, {"documents": [{"body": "a"}]}, InvalidRequest, "documents[0].text"),
        (rerank, {"documents": [{"text": "a"}], "rank_fields": ["title"]}, InvalidRequest, "documents[0].title"),
        (rerank, {"documents": ["a" * 4_800_001, "a"]}, InvalidRequest, "documents"),
        (rerank, {"query": ""}, InvalidRequest, "query"),
        (rerank, {"model": ""}, InvalidRequest, "model"),
        (rerank, {"top_n": 0}, InvalidRequest, "top_n"),
        (rerank, {"max_tokens_per_doc": 0}, InvalidRequest, "max_tokens_per_doc"),
        (rerank, {"max_chunks_per_doc": 3}, Unsupported, "max_chunks_per_doc"),
        (rerank, {"priority": 1}, Unsupported, "priority"),
        (score, {"text_1": ["a", "b", "c"]}, InvalidRequest, "text_1"),
        (score, {"text_2": ["a", ""]}, InvalidRequest, "text_2[1]"),
        (score, {"text_2": ""}, InvalidRequest, "text_2"),
        (score, {"truncate_prompt_tokens": 9}, Unsupported, "truncate_prompt_tokens"),
    ]
    for read, changes, kind, param in cases:
        with case(param=param, changes=str(changes)[:80]), pytest.raises(kind) as caught:
            read(**changes)
        assert caught.value.param == param


def test_results_are_the_best_first_and_have_their_documents_if_asked() -> None:
    assert ranked([0.1, 0.9, 0.9, 0.5], None) == [(1, 0.9), (2, 0.9), (3, 0.5), (0, 0.1)]
    body, _ = rerank(documents=["a", {"text": "b", "id": 7}], top_n=1, return_documents=True)
    answer = rerank_object(body, "model", [0.25, 0.75], 12)
    assert answer["results"] == [{"index": 1, "relevance_score": 0.75, "document": {"text": "b", "id": 7}}]
    assert (answer["usage"], answer["meta"]["tokens"]) == (
        {"prompt_tokens": 12, "total_tokens": 12},
        {"input_tokens": 12},
    )
    body, _ = rerank()
    plain = rerank_object(body, "model", [0.25, 0.75], 12)["results"]
    assert plain == [{"index": 1, "relevance_score": 0.75}, {"index": 0, "relevance_score": 0.25}]
    assert score_object("model", [0.25, 0.75], 12)["data"] == [
        {"index": 0, "object": "score", "score": 0.25},
        {"index": 1, "object": "score", "score": 0.75},
    ]
