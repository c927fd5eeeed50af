"""Comparison of transcription through allm's whole path with the plain libraries: `python -m bench.audio`.

    python -m bench.audio [--quick] [--rounds 3] [--no-vad] [--concurrency 4] [--no-long]

All contenders use the same weights, files, beam, compute type and total number of compute threads, except that
openai-whisper has only float32. allm receives its requests over REST, through Envoy. A trial measures each setting of
the libraries at each concurrency. The rounds then measure the best two, and the better setting of openai-whisper, in
turn with allm and with the same clips. The machine may be shared: the result is the median of the rounds' ratios, and
CPU seconds show what noise hides. The bench also measures CTranslate2's encoder alone: nothing that encodes windows of
30 s can be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from bench.audio_contender import Contender, allm, encoders, libraries, library
from bench.audio_library import Level, Library, Plan
from bench.audio_material import LONG, order
from bench.audio_result import Entry, markdown, rows
from bench.noise import NoiseMeter
from bench.results_folder import save
from bench.row import Row

CONCURRENCIES = (1, 4, 16)
BATCHES = (4, 8, 16)
ENCODED = (3000, 1500)  # columns: the usual window, and the shortest one of allm
ENCODER_BATCHES = (1, 8)
ENCODER_CALLS = 8
_CLIPS = {1: 15, 4: 30, 16: 45}
_TRIAL_CLIPS = {1: 6, 4: 12, 16: 32}
_KEPT = 2


class Rounds:
    """The rounds of the comparison: runs the contenders in turn and keeps their figures."""

    def __init__(self, threads: int, compute_type: str, quick: bool, *, vad: bool) -> None:
        self._threads = threads
        self._compute_type = compute_type
        self._quick = quick
        self._vad = vad
        self._seed = datetime.now(UTC).isoformat()
        self._console = Console()
        self._stack = ExitStack()
        self._running: dict[str, Contender] = {}
        self._plans = {plan.name: plan for plan in libraries(threads, compute_type, BATCHES, vad=vad)}
        self.entries: list[Entry] = []

    def __enter__(self) -> Rounds:
        self._running["allm"] = self._stack.enter_context(allm(self._threads, self._compute_type, vad=self._vad))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def choose(self, clients: int) -> list[str]:
        """Tries every library at a concurrency; returns the names of the best ones and of the better openai-whisper."""
        level = Level(clients, order(f"{self._seed} trial", _TRIAL_CLIPS.get(clients, 2 * clients)))
        tried = {
            name: self._measure(name, level, -1).speed for name, plan in self._plans.items() if _fits(plan, clients)
        }
        ranked = sorted(tried, key=tried.__getitem__, reverse=True)
        whisper = [name for name in ranked if self._plans[name].library is Library.WHISPER]
        return [*[name for name in ranked if name not in whisper][:_KEPT], *whisper[:1]]

    def fitting(self, names: Sequence[str], clients: int) -> list[str]:
        """Returns the named settings that make sense at a concurrency. Raises KeyError for an unknown name."""
        return [name for name in names if _fits(self._plans[name], clients)]

    def take(self, number: int, clients: int, names: Sequence[str]) -> None:
        """Runs a round of allm and the chosen settings; each round begins with another contender."""
        table = _TRIAL_CLIPS if self._quick else _CLIPS
        level = Level(clients, order(f"{self._seed} {number}", table.get(clients, 3 * clients)))
        self._in_turn(number, level, ["allm", *names])

    def long(self, number: int) -> None:
        """Runs a round with the long recording: allm, and the libraries with all threads for one caller."""
        names = [plan.name for plan in self._plans.values() if plan.workers * plan.processes == 1]
        names = [name for name in names if number == 0 or self._plans[name].library is not Library.WHISPER]
        self._in_turn(number, Level(1, [LONG]), ["allm", *names])

    def floor(self, number: int) -> None:
        """Measures the encoder alone, in each way of calling it."""
        for columns in ENCODED:
            for plan in encoders(self._threads, self._compute_type, columns, ENCODER_BATCHES):
                self._plans[plan.name] = plan
                calls = max(2, ENCODER_CALLS // plan.batch) * plan.workers
                self._measure(plan.name, Level(plan.workers, [0] * calls), number)

    def _in_turn(self, number: int, level: Level, names: Sequence[str]) -> None:
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            self._measure(name, level, number)

    def _measure(self, name: str, level: Level, number: int) -> Entry:
        contender, plan = self._contender(name), self._plans.get(name)
        if plan and plan.library is Library.WHISPER:  # so slow that fewer clips suffice
            level = replace(level, clips=level.clips[: max(2, len(level.clips) // 4)])
        meter = NoiseMeter(contender.pid)
        timing = contender.measure(level)
        noise = meter.read()
        entry = Entry.of(name, number, level, timing, noise, plan)
        self.entries.append(entry)
        self._console.print(entry.line, markup=False, highlight=False, soft_wrap=True)
        return entry

    def _contender(self, name: str) -> Contender:
        found = self._running.get(name)
        if found is None:
            found = self._running[name] = self._stack.enter_context(library(self._plans[name]))
        return found


def beside_libraries(rounds: int, threads: int) -> list[Row]:
    """Measures clips at all numbers of clients, as the service computes them, beside the best libraries."""
    with Rounds(threads, "int8", True, vad=True) as turns:
        chosen = {clients: turns.choose(clients) for clients in CONCURRENCIES}
        for number in range(rounds):
            for clients in CONCURRENCIES:
                turns.take(number, clients, chosen[clients])
    return rows(turns.entries)


def _fits(plan: Plan, clients: int) -> bool:
    """Checks that a split of the threads makes sense for a number of callers."""
    return plan.library is not Library.ENCODER and plan.workers * plan.processes <= clients


def main(
    concurrency: Annotated[list[int] | None, typer.Option(help="Numbers of clients; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of each.")] = 2,
    compute_type: Annotated[str, typer.Option(help="CTranslate2's precision.")] = "int8",
    vad: Annotated[bool, typer.Option(help="Voice activity detection in all that have it.")] = True,
    long: Annotated[bool, typer.Option(help="Also a recording of ten minutes.")] = True,
    peer: Annotated[
        list[str] | None, typer.Option(help="A library's setting, as trials name it: no trial then.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Fewer requests and a single round; nothing is saved.")] = False,
) -> None:
    """Measures allm and the libraries, and writes a table and the raw figures to bench/results."""
    levels = sorted(concurrency or CONCURRENCIES)
    with Rounds(threads, compute_type, quick, vad=vad) as turns:
        chosen = {clients: turns.fitting(peer, clients) if peer else turns.choose(clients) for clients in levels}
        for number in range(1 if quick else rounds):
            for clients in levels:
                turns.take(number, clients, chosen[clients])
            turns.floor(number)
            if long:
                turns.long(number)
    text = markdown(turns.entries, threads, compute_type, vad=vad)
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    if quick:
        return
    complete = long and set(levels) >= set(CONCURRENCIES)
    name = ("audio" if vad else "audio-no-vad") + ("" if complete else "-partial")
    save(name, text, {"entries": turns.entries})


if __name__ == "__main__":
    typer.run(main)
