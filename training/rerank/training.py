"""The training loop: a query with its answer and hard negatives, of which the answer must get the highest score."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from transformers import AutoTokenizer, BertForSequenceClassification

from training.rerank.adapter import cross_encoder
from training.rerank.candidates import Query

SEED = 1
QUERIES = 8  # of a step
NEGATIVES = 4  # of a query, drawn from its hard ones
HARD = 15
MOST_PAIR = 96  # tokens of a query with its passage
RATE = 1e-3
WARMUP = 0.05  # of the steps
LINE_SECONDS = 30.0


class PairTokens:
    """Tokenizes pairs of a query and a passage."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def __call__(self, queries: Sequence[str], passages: Sequence[str]) -> dict[str, torch.Tensor]:
        """Returns input_ids, token_type_ids and attention_mask [pairs, tokens]."""
        return self._tokenizer(
            list(queries),
            list(passages),
            padding=True,
            truncation="longest_first",  # usually the passage
            max_length=MOST_PAIR,
            return_tensors="pt",
        )


def train(folder: Path, queries: Sequence[Query], steps: int) -> BertForSequenceClassification:
    """Trains a cross-encoder from MiniLM in `folder`; the learning rate falls to zero with the last step."""
    torch.manual_seed(SEED)
    rng = numpy.random.default_rng(SEED)
    model, tokens = cross_encoder(folder).eval(), PairTokens(folder)  # dropout takes a fifth of a step on a CPU
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    told = time.monotonic()
    losses: list[float] = []
    order = numpy.array([], int)
    for step in range(steps):
        if len(order) < QUERIES:
            order = rng.permutation(len(queries))
        chosen, order = order[:QUERIES], order[QUERIES:]
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / (steps * WARMUP), 1 - step / steps)
        loss = _loss(model, tokens, [queries[at] for at in chosen], rng)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (now := time.monotonic()) - told > LINE_SECONDS:
            print(
                f"{time.strftime('%H:%M:%S')} step {step + 1} of {steps}, loss {sum(losses) / len(losses):.4f}",
                flush=True,
            )
            told, losses = now, []
    return model.eval()


def _loss(
    model: BertForSequenceClassification, tokens: PairTokens, queries: Sequence[Query], rng: numpy.random.Generator
) -> torch.Tensor:
    """Returns the loss of a step: over each query's passages the cross-entropy of the answer, and over all pairs that
    of yes or no, so that the score is also a probability."""
    texts: list[str] = []
    for query in queries:
        negatives = [
            query.negatives[at] for at in rng.choice(min(HARD, len(query.negatives)), NEGATIVES, replace=False)
        ]
        texts += [query.pair.passage, *negatives]
    asked = [query.pair.query for query in queries for _ in range(1 + NEGATIVES)]
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(**tokens(asked, texts)).logits
    logits = logits.float().view(len(queries), 1 + NEGATIVES)
    answer = torch.zeros_like(logits)
    answer[:, 0] = 1
    ranking = torch.nn.functional.cross_entropy(logits, torch.zeros(len(queries), dtype=torch.long))
    calibration = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, answer, pos_weight=torch.tensor(float(NEGATIVES))
    )
    return ranking + 0.3 * calibration
