"""The ranking by MiniLM's cosine: hard negatives for training, and the baseline of the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from training.rerank.pairs import Pair

BATCH = 128
MOST_TOKENS = 96  # of a text: passages have 60 words at most
ALIKE = 0.95  # cosine of two passages above which the other one may answer as well


@dataclass(frozen=True)
class Query:
    """A pair with the passages that MiniLM ranks highest for its query, best first."""

    pair: Pair
    negatives: list[str]  # without the answer, and without near copies of it
    rank: int  # of the answer among all passages of the source, from 0


class MiniLM:
    """The embedding model: mean over the tokens, normalised to length one."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Returns the vectors [texts, 384]."""
        vectors = torch.empty(len(texts), self._model.config.hidden_size)
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        for first in range(0, len(order), BATCH):
            chosen = order[first : first + BATCH]
            given = self._tokenizer(
                [texts[at] for at in chosen], padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt"
            )
            with torch.autocast("cpu", torch.bfloat16):
                hidden = self._model(**given).last_hidden_state.float()
            mask = given["attention_mask"].unsqueeze(-1)
            vectors[chosen] = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
        return vectors


def rank(model: MiniLM, pairs: Sequence[Pair], most: int) -> list[Query]:
    """Ranks the passages of one source for each of its queries, and keeps the `most` best wrong ones."""
    passages = [pair.passage for pair in pairs]
    queries, found = model.embed([pair.query for pair in pairs]), model.embed(passages)
    ranked = []
    for at, pair in enumerate(pairs):
        cosines = found @ queries[at]
        alike = found @ found[at] > ALIKE
        position = int(((cosines > cosines[at]) & ~alike).sum())
        cosines[alike] = -2.0
        best = cosines.topk(min(most, len(pairs) - int(alike.sum()))).indices.tolist()
        ranked.append(Query(pair, [passages[one] for one in best], position))
    return ranked
