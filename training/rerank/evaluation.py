"""The evaluation: both models rank the same passages of held-out pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import BertForSequenceClassification

from training.rerank.candidates import Query
from training.rerank.training import PairTokens

CANDIDATES = 20  # the answer and MiniLM's best 19 others
BATCH = 8


@dataclass(frozen=True)
class Figures:
    """The quality of a ranking of CANDIDATES passages."""

    first: float  # share of the queries whose answer is ranked first
    reciprocal: float  # mean of 1 / rank of the answer

    @classmethod
    def of(cls, ranks: Sequence[int]) -> Figures:
        """`ranks`: of the answers, from 0."""
        return cls(sum(one == 0 for one in ranks) / len(ranks), sum(1 / (1 + one) for one in ranks) / len(ranks))

    def __str__(self) -> str:
        return f"first {self.first:.3f}, MRR {self.reciprocal:.3f}"


def baseline(queries: Sequence[Query]) -> list[int]:
    """Returns the rank of each answer by MiniLM's cosine, among the candidates."""
    return [min(query.rank, len(query.negatives), CANDIDATES - 1) for query in queries]


@torch.inference_mode()
def ranks(model: BertForSequenceClassification, folder: Path, queries: Sequence[Query]) -> list[int]:
    """Returns the rank of each answer by the cross-encoder's scores."""
    tokens, found = PairTokens(folder), []
    for first in range(0, len(queries), BATCH):
        for query in queries[first : first + BATCH]:
            texts = [query.pair.passage, *query.negatives[: CANDIDATES - 1]]
            scores = model(**tokens([query.pair.query] * len(texts), texts)).logits[:, 0]
            found.append(int((scores[1:] >= scores[0]).sum()))
    return found
