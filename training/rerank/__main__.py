"""Trains a cross-encoder on MiniLM and compares it with MiniLM's cosine: `python -m training.rerank --help`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import torch
from transformers import BertForSequenceClassification

from services.models.demo.conversion import adapt
from services.models.demo.copied_demo import ENCODER
from training.rerank.adapter import save_adapter
from training.rerank.candidates import MiniLM, Query, rank
from training.rerank.evaluation import Figures, baseline, ranks
from training.rerank.pairs import Pair, read_pairs
from training.rerank.training import HARD, train

SOURCES = {"code": 2500, "operations": 2500, "countries": 1000}  # the pairs to train on: more only cost time
HELD_OUT = 300  # of each source
STEPS = 800
THREADS = 2  # another number changes the order of sums


def main() -> None:
    """Parses and runs the command line."""
    parser = argparse.ArgumentParser(prog="training/rerank", description=__doc__)
    parser.add_argument("command", choices=["train", "evaluate"])
    parser.add_argument("--data", type=Path, required=True, help="folder into which data.txt is installed")
    parser.add_argument("--adapter", type=Path, required=True, help="file of the trained weights")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how long to train, default {STEPS}")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    folder = ENCODER.source()
    if folder is None:
        sys.exit("all-MiniLM-L6-v2 is not installed: make serve installs it")
    pairs, model = read_pairs(given.data), MiniLM(folder)
    if given.command == "train":
        queries = [query for source in SOURCES for query in _ranked(model, pairs, source, held_out=False)]
        save_adapter(train(folder, queries, given.steps), given.adapter)
    with tempfile.TemporaryDirectory() as place:
        adapt(folder, given.adapter, Path(place) / "merged")
        trained = BertForSequenceClassification.from_pretrained(Path(place) / "merged").eval()
        for source in SOURCES:
            queries = _ranked(model, pairs, source, held_out=True)
            ours, cosine = Figures.of(ranks(trained, folder, queries)), Figures.of(baseline(queries))
            print(f"{source}, {len(queries)} held-out queries: cosine {cosine}; cross-encoder {ours}", flush=True)


def _ranked(model: MiniLM, pairs: list[Pair], source: str, *, held_out: bool) -> list[Query]:
    chosen = [pair for pair in pairs if pair.source == source and pair.held_out == held_out]
    random.Random(1).shuffle(chosen)  # noqa: S311 (a choice of texts)
    return rank(model, chosen[: HELD_OUT if held_out else SOURCES[source]], HARD + 5)


if __name__ == "__main__":
    main()
