"""All comparisons with a bar on one page, allm as installed: `python -m bench.page [--only text] [--rounds 3]`.

Each part runs allm and its peers in turn, in the same run, and the page shows the medians of the rounds. A row that
misses its bar says by how much, and `REASONS` says where its time goes. The page is written after each part, so that an
interruption loses only the part that ran. On two quiet cores all parts take about two hours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from bench import audio, embeddings, image, speculation
from bench.comparison import rows
from bench.contender import Scenario, allm
from bench.llama_server import build
from bench.load import CONCURRENCIES, level_of
from bench.prompts import PromptSet
from bench.results_folder import save
from bench.row import Row, table
from bench.run import Plan, compared, machine
from bench.turn import machine_alone, take
from bench.weights import Precision, gguf
from services.worker.process import available_cores

ROOT = Path(__file__).parents[1]
BEFORE_PATH_MS = 2.0  # that the path added to a token before it was shortened
BEFORE_START_SECONDS = 420.0  # of the first set-up, when llama.cpp was compiled after the downloads
# Where the time of a missed bar goes. The key begins the row's case, after its part.
REASONS = {
    "text: Q4_1": "prompts: of several, llama-server computes 0.38 ms a token, allm 0.55 to 0.65, because a step takes"
    " parts of prompts beside answers and weights of four bits are unpacked for every part",
}


def text(rounds: int, console: Console) -> list[Row]:
    """Chats beside llama-server's best setting."""
    plan = Plan(list(Precision), list(PromptSet), CONCURRENCIES, rounds, quick=True, threads=0)
    return rows(compared(plan, console))


def speculated(rounds: int, console: Console) -> list[Row]:
    """Guessed tokens beside llama-server's best n-gram mode."""
    launches = speculation.servers(build(console), Scenario(gguf(Precision.BF16), concurrency=1))
    return speculation.rows(speculation.take(launches, rounds, 6, console))


def path(rounds: int, console: Console) -> list[Row]:
    """The milliseconds that Envoy, service and channel add to a token of the bare batch loop."""
    added = []
    scenario = Scenario(gguf(Precision.BF16), concurrency=1)
    command = [sys.executable, "-m", "bench.torch_loop", "--runtime", "llama_cpp", "--clients", "1", "--json"]
    for number in range(rounds):
        with machine_alone():
            bare = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        whole = take(lambda: allm(scenario, tuned=False), level_of(PromptSet.UNIQUE, 1, True), f"path {number}")
        added.append(whole.result.gap_ms.p50 - 1000 * median(bare["gaps"]))
        console.print(f"round {number + 1}  the path adds {added[-1]:.2f} ms a token")
    return [Row("1 client", "ms a token", median(added), BEFORE_PATH_MS, "before", 0.5, at_most=True)]


def start(_: int, console: Console) -> list[Row]:
    """The first set-up of a fresh clone, with an empty cache of packages; once."""
    with TemporaryDirectory(prefix="allm-start-") as folder:
        subprocess.run(["git", "clone", "--quiet", ROOT, f"{folder}/allm"], check=True)
        environment = {**os.environ, "PIP_CACHE_DIR": f"{folder}/cache"}
        begun = time.monotonic()
        subprocess.run(["make", ".venv/.run"], cwd=f"{folder}/allm", env=environment, check=True)
        seconds = time.monotonic() - begun
    console.print(f"the first set-up takes {seconds:.0f} s")
    return [Row("fresh clone", "set-up, s", seconds, BEFORE_START_SECONDS, "before", 0.5, at_most=True)]


PARTS: dict[str, Callable[[int, Console], list[Row]]] = {
    "text": text,
    "speculation": speculated,
    "path": path,
    "embeddings": lambda rounds, _: embeddings.beside_transformers(rounds, available_cores()),
    "speech": lambda rounds, _: audio.beside_libraries(rounds, available_cores()),
    "pictures": lambda rounds, _: image.beside_pipeline(rounds, available_cores()),
    "start": start,
}


def page(found: dict[str, list[Row]], rounds: int) -> str:
    """Formats the rows of all parts, with the reasons of missed bars."""
    about = machine()
    head = f"{about['cores']} cores of {about['cpu']}, {datetime.now(UTC):%Y-%m-%d}; medians of {rounds} rounds."
    lines = [f"allm as installed beside its peers, from `python -m bench.page`. {head}", ""]
    for name, measured in found.items():
        holding = sum(row.holds for row in measured)
        lines += [f"## {name.capitalize()}: {holding} of {len(measured)} bars hold", "", table(measured), ""]
        missed = [f"{name}: {row.case}" for row in measured if not row.holds]
        for start_of, why in REASONS.items():
            if any(case.startswith(start_of) for case in missed):
                lines += [f"Where the time goes, {start_of}: {why}.", ""]
    return "\n".join(lines)


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"A part; may be repeated. {', '.join(PARTS)}")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 3,
) -> None:
    """Measures all parts and writes bench/results/page.md, or page-partial.md with `--only`."""
    unknown = set(only or ()) - PARTS.keys()
    if unknown:
        raise typer.BadParameter(f"there is no part {', '.join(sorted(unknown))}: name {', '.join(PARTS)}")
    console, found = Console(), dict[str, list[Row]]()
    for name in only or PARTS:
        console.rule(name)
        found[name] = PARTS[name](rounds, console)
        save("page-partial" if only else "page", page(found, rounds), {"rows": found})
    console.print(page(found, rounds), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
