"""Speculation against llama-server's own, in one run: copies of code, where guesses help, and unique prompts.

    python -m bench.speculation [--rounds 3] [--requests 6] [--binary PATH]

Each round starts every server in turn: allm with and without speculation, llama-server without and with each of its
n-gram modes. One client asks for one answer after the other. Copies are plain completions: a piece of Python's own
library, then "The same code again:", so that even a small model copies. The machine's speed drifts: compare the CPU
seconds per token besides the tokens per second.
"""

from __future__ import annotations

import inspect
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from urllib.request import Request, urlopen

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.contender import SETTINGS, Scenario, Setting, allm, llama_server
from bench.llama_server import build
from bench.noise import process_seconds
from bench.process import Launch, Running, running
from bench.prompts import PromptSet, messages
from bench.row import Row
from bench.turn import machine_alone
from bench.weights import Precision, gguf

COPIED_CHARACTERS = 900
OUTPUT_TOKENS = 160
MODES = ("ngram-simple", "ngram-cache", "ngram-map-k", "ngram-mod")  # of llama-server
KINDS = ("copies", "unique")


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one server's answers of one kind."""

    tokens_per_s: float
    cpu_ms: float  # of the server, per token
    accepted: int  # guesses that were right
    rejected: int


def copies(round_number: int, count: int) -> list[dict[str, Any]]:
    """Returns the bodies of requests that ask for a copy of code, other code in each round."""
    source = inspect.getsource(textwrap) + inspect.getsource(inspect)
    found = []
    for number in range(round_number * count, (round_number + 1) * count):
        start = source.index("\n    def ", number * 2 * COPIED_CHARACTERS % (len(source) - 4 * COPIED_CHARACTERS))
        code = source[start : start + COPIED_CHARACTERS].rpartition("\n")[0]
        found.append({"prompt": f"```python{code}\n```\n\nThe same code again:\n```python"})
    return found


def unique(round_number: int, count: int) -> list[dict[str, Any]]:
    """Returns the bodies of chats about random words, which repeat nothing of each other."""
    return [{"messages": messages(PromptSet.UNIQUE, f"{round_number} {number}")} for number in range(count)]


def measure(server: Running, bodies: Sequence[dict[str, Any]]) -> Reading:
    """Asks for one answer after the other; the first does not count."""
    seconds, cpu, tokens, accepted, rejected = 0.0, 0.0, 0, 0, 0
    for number, body in enumerate(bodies):
        before, started = process_seconds(server.pid), time.perf_counter()
        usage = _ask(server, body)
        if number:
            seconds += time.perf_counter() - started
            cpu += process_seconds(server.pid) - before
            tokens += usage["completion_tokens"]
            details = usage.get("completion_tokens_details") or {}
            accepted += details.get("accepted_prediction_tokens", 0)
            rejected += details.get("rejected_prediction_tokens", 0)
    return Reading(tokens / seconds, 1000 * cpu / tokens, accepted, rejected)


def _ask(server: Running, body: dict[str, Any]) -> dict[str, Any]:
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    options = {"model": server.model, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    request = Request(server.url + path, msgspec.json.encode({**body, **options}), {"Content-Type": "application/json"})
    with urlopen(request, timeout=300) as answer:
        usage: dict[str, Any] = msgspec.json.decode(answer.read())["usage"]
    return usage


def servers(binary: Path, scenario: Scenario) -> dict[str, Callable[[], Launch]]:
    """Returns the launches by name."""

    def ours(mode: str) -> Launch:
        launch = allm(scenario)
        return replace(launch, environment={**launch.environment, "ALLM_SPECULATION": mode})

    def theirs(*arguments: str) -> Launch:
        return llama_server(binary, Setting("", (*SETTINGS[0].arguments, *arguments)), scenario)

    found: dict[str, Callable[[], Launch]] = {f"allm {mode}": partial(ours, mode) for mode in ("off", "ngram")}
    found["llama-server off"] = theirs
    return found | {f"llama-server {mode}": partial(theirs, "--spec-type", mode) for mode in MODES}


Readings = dict[tuple[str, str], list[Reading]]  # by kind and server


def take(launches: dict[str, Callable[[], Launch]], rounds: int, requests: int, console: Console) -> Readings:
    """Measures all servers in turn."""
    found: Readings = {}
    for number in range(rounds):
        for name, launch in launches.items():
            with machine_alone(), running(launch()) as server:
                for kind, bodies in zip(KINDS, (copies, unique), strict=True):
                    reading = measure(server, bodies(number, requests + 1))
                    found.setdefault((kind, name), []).append(reading)
                    console.print(f"round {number + 1}  {kind:7} {name:26} {reading}", highlight=False, soft_wrap=True)
    return found


def rows(found: Readings) -> list[Row]:
    """Returns the figures that have a bar: copies beside llama-server's best mode, unique prompts beside none."""
    speeds = {key: median(one.tokens_per_s for one in readings) for key, readings in found.items()}
    best = max((f"llama-server {mode}" for mode in MODES), key=lambda name: speeds["copies", name])
    ours = "allm ngram"
    return [
        Row("copies of code, 1 client", "tokens/s", speeds["copies", ours], speeds["copies", best], best, 1.0),
        Row("unique prompts, 1 client", "tokens/s", speeds["unique", ours], speeds["unique", "allm off"], "off", 0.97),
    ]


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each server is measured.")] = 3,
    requests: Annotated[int, typer.Option(min=1, help="Measured answers of each kind.")] = 6,
    precision: Annotated[Precision, typer.Option(help="Weights.")] = Precision.BF16,
    only: Annotated[list[str] | None, typer.Option(help="A server's name; may be repeated. Default: all.")] = None,
    binary: Annotated[Path | None, typer.Option(help="A llama-server; otherwise it is built.")] = None,
    threads: Annotated[int, typer.Option(help="Compute threads of both servers; 0: one for each core.")] = 0,
) -> None:
    """Measures all servers in turn and prints the medians of the rounds."""
    console = Console()
    launches = servers(binary or build(console), Scenario(gguf(precision), concurrency=1, threads=threads))
    asked = {name: launch for name, launch in launches.items() if not only or name in only}
    found = take(asked, rounds, requests, console)
    shown = Table(title=f"{precision}, one client, medians of {rounds} rounds", title_justify="left")
    for head in ("prompts", "server", "tokens/s", "of the first", "CPU ms/token", "accepted", "rejected"):
        shown.add_column(head)
    for (kind, name), readings in found.items():
        speed = median(one.tokens_per_s for one in readings)
        ratio = speed / median(one.tokens_per_s for one in found[kind, next(iter(found))[1]])
        cpu = median(one.cpu_ms for one in readings)
        counts = (sum(one.accepted for one in readings), sum(one.rejected for one in readings))
        shown.add_row(kind, name, f"{speed:.1f}", f"{ratio:.2f}x", f"{cpu:.1f}", *map(str, counts))
    console.print(shown)


if __name__ == "__main__":
    typer.run(main)
