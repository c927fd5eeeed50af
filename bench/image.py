"""Comparison of image generation through allm's whole path with the plain diffusers pipeline: `python -m bench.image`.

    python -m bench.image [--quick] [--rounds 5] [--concurrency 4] [--steps 20]

Both use the same weights, prompts, seeds, steps, guidance, size, scheduler, precision and compute threads. allm
receives its requests over REST, through Envoy; the pipeline runs in a loop in its own process. They take turns, and the
first one alternates. The machine may be shared: the result is the median of the rounds' ratios, and CPU seconds show
what noise hides. With several clients, the first round also calls the pipeline with one batch of as many prompts: the
upper bound of what batching can give.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from bench.image_contender import Contender, allm, pipeline
from bench.image_pipeline import Level, Plan, Timing
from bench.image_result import OURS, Entry, difference, markdown, rows
from bench.noise import NoiseMeter
from bench.results_folder import save
from bench.row import Row

CONCURRENCIES = (1, 4, 16)
_PICTURES = {1: 6, 4: 16, 16: 48}
_QUICK_PICTURES = {1: 4, 4: 12, 16: 32}
_LOOP_PICTURES = 6  # with more clients the looped pipeline is no faster, so fewer images suffice


class Rounds:
    """The rounds of the comparison: runs the contenders in turn and keeps their figures."""

    def __init__(self, plan: Plan, most: int, *, quick: bool) -> None:
        """`most` is the largest number of clients."""
        self._plan = plan
        self._most = most
        self._pictures = _QUICK_PICTURES if quick else _PICTURES
        self._console = Console()
        self._stack = ExitStack()
        self._running: dict[str, Contender] = {}
        self.entries: list[Entry] = []
        self.differences: dict[int, int] = {}

    def __enter__(self) -> Rounds:
        self._running[OURS] = self._stack.enter_context(allm(self._plan, self._most))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, number: int, clients: int) -> None:
        """Runs a round of allm and the pipeline; the first one alternates."""
        loop = self._plan
        plans = {loop.name: loop}
        if clients > 1 and number == 0:
            whole = replace(loop, batch=clients)
            plans[whole.name] = whole
        names = [OURS, *plans]
        first = number % len(names)
        pictures = self._pictures.get(clients, 3 * clients)
        timings = {}
        for name in [*names[first:], *names[:first]]:
            count = min(pictures, _LOOP_PICTURES) if name == loop.name else pictures
            seeds = list(range(1000 * number, 1000 * number + count))
            timings[name] = self._measure(name, plans.get(name), Level(clients, seeds), number)
        most = difference(timings[OURS], timings[loop.name])
        self.differences[clients] = max(self.differences.get(clients, 0), most)

    def _measure(self, name: str, plan: Plan | None, level: Level, number: int) -> Timing:
        if plan is not None and name not in self._running:
            self._running[name] = self._stack.enter_context(pipeline(plan))
        contender = self._running[name]
        meter = NoiseMeter(contender.pid)
        timing = contender.measure(level)
        entry = Entry.of(name, number, level, timing, meter.read())
        self.entries.append(entry)
        self._console.print(entry.line, markup=False, highlight=False, soft_wrap=True)
        return timing


def measured(plan: Plan, levels: Sequence[int], rounds: int, *, quick: bool) -> Rounds:
    """Runs all rounds at these numbers of clients."""
    with Rounds(plan, max(levels), quick=quick) as turns:
        for number in range(rounds):
            for clients in levels:
                turns.take(number, clients)
    return turns


def beside_pipeline(rounds: int, threads: int) -> list[Row]:
    """Measures all numbers of clients beside the pipeline, alone and with all prompts in one call."""
    plan = Plan(threads=threads, steps=20, guidance=2.5)
    return rows(measured(plan, CONCURRENCIES, rounds, quick=True).entries)


def main(
    concurrency: Annotated[list[int] | None, typer.Option(help="Numbers of clients; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of each.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a picture.")] = 20,
    quick: Annotated[bool, typer.Option(help="Fewer pictures and a single round; nothing is saved.")] = False,
) -> None:
    """Measures allm and the pipeline, and writes a table and the raw figures to bench/results."""
    levels = sorted(concurrency or CONCURRENCIES)
    plan = Plan(threads=threads, steps=steps, guidance=2.5)
    turns = measured(plan, levels, 1 if quick else rounds, quick=quick)
    text = markdown(turns.entries, plan, turns.differences)
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    if quick:
        return
    name = "image" if set(levels) >= set(CONCURRENCIES) else "image-partial"
    save(name, text, {"entries": turns.entries})


if __name__ == "__main__":
    typer.run(main)
