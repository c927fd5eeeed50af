"""The preparation of pairs in a worker: their limits, and what a refusal names."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.text.engine.embedding_loop import EmbeddingJob, Tokens, Vectors
from services.text.engine.messages import LEAST_INPUT_BYTES, MAX_EMBEDDED_TOKENS, Accepted, EncoderReady, Rank
from services.text.engine.pairs import prepare_pairs
from services.worker.messages import RequestRefused
from tests.text.engine.prepared import prepared


class Letters:
    """A reranker whose tokens are letters."""

    ready = EncoderReady(context_tokens=1000, dimensions=1, vocabulary=256)
    batch_inputs, normalised = 8, False

    def tokenize(self, text: str) -> Tokens:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def pair(self, query: str, document: str, document_tokens: int) -> Tokens:
        return self.tokenize(query + (document[:document_tokens] if document_tokens else document))

    def encode(self, inputs: Any) -> Vectors:
        raise NotImplementedError


def ask(queries: list[str], documents: list[str], **changes: Any) -> tuple[EmbeddingJob | None, Any]:
    sent: list[Any] = []
    rank = Rank(request=1, client="me", queries=queries, documents=documents, **changes)
    job = prepared(prepare_pairs(Letters(), rank, sent.append))
    return job, sent[0]


def test_every_document_meets_the_query_or_its_own() -> None:
    job, accepted = ask(["q"], ["a", "bc"])
    assert (job is not None and [bytes(one.tolist()) for one in job.inputs], accepted) == (
        [b"qa", b"qbc"],
        Accepted(1, 5),
    )
    job, _ = ask(["q", "r"], ["a", "bc"])
    assert job is not None
    assert [bytes(one.tolist()) for one in job.inputs] == [b"qa", b"rbc"]


def test_a_pair_that_is_too_long_is_refused_unless_its_document_may_be_cut() -> None:
    long = "a" * 1000
    job, refused = ask(["q"], ["a", long])
    assert job is None
    assert isinstance(refused, RequestRefused)
    assert (refused.code, refused.param) == ("CONTEXT_LENGTH_EXCEEDED", "documents[1]")
    assert "1001 tokens together with its query, but this model takes at most 1000" in refused.message
    job, accepted = ask(["q"], ["a", long * 10_000], document_tokens=999)
    assert (job is not None, accepted) == (True, Accepted(1, 2 + 1000))
    job, refused = ask(["q" * 1000], ["a"], document_tokens=1)
    assert (job, refused.param) == (None, "documents[0]"), "a query is never cut"


def test_texts_that_are_far_too_long_are_refused_before_they_are_tokenized() -> None:
    huge = "a" * (LEAST_INPUT_BYTES + 1)
    assert ask(["q"], [huge])[1].param == "documents[0]"
    assert ask(["q", huge], ["a", "b"], query_param="text_1[]")[1].param == "text_1[1]"


def test_all_pairs_together_have_a_limit() -> None:
    _, refused = ask(["q"], ["a" * 999] * (MAX_EMBEDDED_TOKENS // 1000 + 1))
    assert (refused.code, refused.param) == ("INVALID_REQUEST", "documents")
