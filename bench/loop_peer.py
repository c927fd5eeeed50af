"""The common part of bench.rerank and bench.embeddings: an endpoint beside transformers' own loop on the same model.

allm is the whole path: Envoy, the text service and its worker, as installed. The peer is a process that takes the same
requests from as many threads, and for each calls tokenizer and model as in transformers' documentation, one request
after the other. Both have the same number of compute threads. They take turns within each round, and the ratio is the
median over the rounds of allm's texts per second by the peer's: the bar is 1.0.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec

from bench.contender import BUILD_DIR
from bench.library_process import library_process
from bench.process import Launch, free_port, running
from bench.row import Row, counted
from services.worker.process import available_cores, worker_environ

SECONDS = 300.0
WORDS = (10, 60)  # of a text
VOCABULARY = "the of model request memory worker answers queue server reads time for text each cache token".split()  # noqa: SIM905


class Plan(msgspec.Struct):
    """The task of the peer's process."""

    folder: str
    threads: int


class Level(msgspec.Struct):
    """A load: so many clients with so many requests of so many texts each."""

    clients: int
    texts: int
    requests: int
    seed: int = 0


class Timing(msgspec.Struct):
    """The duration of a load."""

    seconds: float


def words(rng: random.Random, count: int) -> str:
    """Returns a text of so many words."""
    return " ".join(rng.choices(VOCABULARY, k=count))


def _requests(level: Level, client: int) -> Iterator[list[str]]:
    rng = random.Random(f"{level.seed}/{client}")  # noqa: S311 (texts, not secrets)
    for _ in range(level.requests):
        yield [words(rng, rng.randint(*WORDS)) for _ in range(level.texts)]


def timed(level: Level, ask: Callable[[list[str]], object]) -> Timing:
    """Runs a load, each client in a thread of its own."""

    def client(number: int) -> None:
        for texts in _requests(level, number):
            ask(texts)

    started = time.perf_counter()
    with ThreadPoolExecutor(level.clients) as threads:
        list(threads.map(client, range(level.clients)))
    return Timing(time.perf_counter() - started)


def peer(compute: Callable[[list[str]], object]) -> None:
    """The peer's process: answers each level on standard input with its timing."""
    turn = threading.Lock()

    def ask(texts: list[str]) -> None:
        with turn:
            compute(texts)

    print("ready", flush=True)
    for line in sys.stdin:
        print(msgspec.json.encode(timed(msgspec.json.decode(line, type=Level), ask)).decode(), flush=True)


def main(compare: Callable[[int, int], list[Row]]) -> None:
    """Compares with the rounds and threads of the command line."""
    parser = argparse.ArgumentParser(description="Compares an endpoint with transformers' own loop.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=available_cores())
    given = parser.parse_args()
    compare(given.rounds, given.threads)


def compare(
    module: str,
    model: Path,
    path: str,
    body: Callable[[list[str]], dict[str, Any]],
    levels: Sequence[Level],
    rounds: int,
    threads: int,
) -> list[Row]:
    """Runs both, alternating; prints a line for each level and returns its row. `module` runs the peer when it is given
    its Plan; `body` makes the request to `path` from its texts.
    """
    port, name = free_port(), module.rpartition(".")[2]
    rows: list[Row] = []
    settings = {
        "ALLM_PORT": str(port),
        "ALLM_METRICS_PORT": "0",
        "ALLM_HOME": str(BUILD_DIR / f"home-{name}"),
        "ALLM_MODELS": f"bench={model}",
        "ALLM_AUDIO_REPLICAS": "0",
        "ALLM_IMAGE_REPLICAS": "0",
        "ALLM_DEVICE": "cpu",
        "ALLM_THREADS": str(threads),
    }
    log = Path(BUILD_DIR / "logs" / f"allm-{name}.log")
    launch = Launch("allm", [sys.executable, "-m", "services.cli", "serve"], port, "/healthz", log, settings)
    with ExitStack() as stack:
        started = stack.enter_context(running(launch))
        caller = stack.enter_context(httpx.Client(base_url=started.url, timeout=SECONDS))
        plan = Plan(str(model), threads)
        other = stack.enter_context(library_process(module, plan, "transformers", Timing, worker_environ(threads)))

        def ask(texts: list[str]) -> None:
            caller.post(path, json={"model": "bench", **body(texts)}).raise_for_status()

        for level in levels:
            first = Level(1, level.texts, 2)
            timed(first, ask)
            other.measure(first)
            ours, theirs = [], []
            for number in range(rounds):
                load = msgspec.structs.replace(level, seed=number + 1)
                for turn in (0, 1) if number % 2 else (1, 0):  # which one goes first changes with the round
                    if turn:
                        ours.append(timed(load, ask).seconds)
                    else:
                        theirs.append(other.measure(load).seconds)
            ratios = [peers / own for peers, own in zip(theirs, ours, strict=True)]
            texts, median = level.clients * level.texts * level.requests, statistics.median
            print(
                f"{level.clients:2} clients, {level.texts:2} texts a request: {texts / median(ours):6.1f} texts/s, "
                f"{1000 * median(ours) / level.requests:7.1f} ms a request, the peer {texts / median(theirs):6.1f}: "
                f"{median(ratios):.2f} of it ({min(ratios):.2f} to {max(ratios):.2f})",
                flush=True,
            )
            case = f"{counted(level.texts, 'text')} a request, {counted(level.clients, 'client')}"
            rows.append(
                Row(case, "texts/s", texts / median(ours), texts / median(theirs), "transformers in a loop", 1.0)
            )
    return rows
