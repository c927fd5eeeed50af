"""Comparison of allm with llama.cpp's own server in one run: `make bench`.

    python -m bench.run [--quick] [--precision BF16] [--concurrency 8] [--prompts unique] [--noise-floor]

For each case (precision, prompts, clients) the run tries three settings of llama-server once; the fastest is the peer.
It then measures in turn allm as installed, allm tuned, and llama-server. Each starts for its turn and stops after it,
so that they never share the machine and its slow drifts affect all. The result compares the medians of the rounds. All
get the same prompts, other ones in each round. `--noise-floor` runs llama-server on all sides, which shows the
measurement's noise.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.chart import draw
from bench.comparison import MIB, Case, Comparison, Figures, markdown
from bench.contender import (
    CONTEXT_TOKENS,
    LONG_CONTEXT_TOKENS,
    SETTINGS,
    Scenario,
    Setting,
    allm,
    llama_server,
)
from bench.llama_server import build, compute_features, installed_library
from bench.load import CONCURRENCIES, level_of
from bench.process import Launch
from bench.prompts import PromptSet
from bench.turn import Turn, take
from bench.weights import Precision, gguf

RESULTS_DIR = Path(__file__).parent / "results"
ROUNDS = 3
_IDLE_LIMIT_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The cases and rounds of a run."""

    precisions: Sequence[Precision]
    prompt_sets: Sequence[PromptSet]
    concurrencies: Sequence[int]
    rounds: int
    quick: bool
    threads: int  # compute threads of both servers; 0: one for each core

    @property
    def cases(self) -> list[Case]:
        return [Case(*one) for one in product(self.precisions, self.prompt_sets, self.concurrencies)]

    @property
    def complete(self) -> bool:
        """True if the plan holds every usual case in three rounds."""
        return self.rounds >= ROUNDS and {*product(Precision, PromptSet, CONCURRENCIES)} <= {
            *product(self.precisions, self.prompt_sets, self.concurrencies)
        }


@dataclass(frozen=True, slots=True)
class Entry:
    """One turn in the saved results."""

    case: Case
    server: str
    setting: str
    round: int  # -1 in a trial of the peer's settings
    turn: Turn


class Runner:
    """The runner of a plan, which keeps the result of each turn."""

    def __init__(self, plan: Plan, binary: Path, noise_floor: bool, console: Console) -> None:
        self._plan = plan
        self._binary = binary
        self._noise_floor = noise_floor
        self._console = console
        self._seed = datetime.now(UTC).isoformat()
        self.entries: list[Entry] = []

    def compare(self, case: Case) -> Comparison:
        """Finds the peer's best setting, then runs all rounds of a case."""
        scenario = Scenario(
            gguf(Precision(case.precision)),
            case.concurrency,
            threads=self._plan.threads,
            context_tokens=LONG_CONTEXT_TOKENS if case.prompt_set is PromptSet.LONG else CONTEXT_TOKENS,
        )
        setting = self._best_setting(case, scenario)
        turns: tuple[list[Turn], ...] = ([], [], [])
        for number in range(self._plan.rounds):
            turns[0].append(self._ours(case, scenario, setting, number, tuned=False))
            turns[1].append(self._ours(case, scenario, setting, number, tuned=True))
            turns[2].append(self._peer(case, scenario, setting, number, self._plan.quick))
        installed, tuned, peer = (
            Figures.of([turn.result for turn in each], [turn.memory for turn in each]) for each in turns
        )
        return Comparison(case, setting.name, installed, peer, tuned)

    def _best_setting(self, case: Case, scenario: Scenario) -> Setting:
        trials = {one: self._peer(case, scenario, one, -1, quick=True).result.tokens_per_s for one in SETTINGS}
        return max(trials, key=trials.__getitem__)

    def _ours(self, case: Case, scenario: Scenario, setting: Setting, number: int, *, tuned: bool) -> Turn:
        if self._noise_floor:
            return self._peer(case, scenario, setting, number, self._plan.quick)
        name = "tuned" if tuned else "as installed"
        return self._turn(case, lambda: allm(scenario, tuned), "allm", name, number, self._plan.quick)

    def _peer(self, case: Case, scenario: Scenario, setting: Setting, number: int, quick: bool) -> Turn:
        launch = lambda: llama_server(self._binary, setting, scenario)  # noqa: E731
        return self._turn(case, launch, "llama-server", setting.name, number, quick)

    def _turn(
        self, case: Case, launch: Callable[[], Launch], server: str, setting: str, number: int, quick: bool
    ) -> Turn:
        turn = take(launch, level_of(case.prompt_set, case.concurrency, quick), f"{self._seed} {number}")
        self.entries.append(Entry(case, server, setting, number, turn))
        self._print(self.entries[-1])
        return turn

    def _print(self, entry: Entry) -> None:
        case, turn, result = entry.case, entry.turn, entry.turn.result
        what = f"{case.precision} {case.prompt_set} {case.concurrency:2}"
        when = "trial  " if entry.round < 0 else f"round {entry.round + 1}"
        line = f"{what}  {when}  {entry.server:12} {entry.setting:24} {result.tokens_per_s:6.1f} tokens/s"
        line += f"  first token {result.ttft_ms.p50:5.0f} ms  gap {result.gap_ms.p50:5.1f} / {result.gap_ms.p95:.1f} ms"
        line += "  memory {:.0f}, {:.0f} MiB".format(*(size / MIB for size in turn.memory))
        noise = result.noise
        if turn.attempts > 1:
            line += f"  [yellow]disturbed: steal {noise.steal_percent:.0f}%, others {noise.other_percent:.0f}%[/]"
        if turn.idle_percent > _IDLE_LIMIT_PERCENT:
            line += f"  [yellow]spins while idle: {turn.idle_percent:.0f}% of a core[/]"
        for reason, count in result.errors.items():
            line += f"\n  [red]{count} x {reason}[/]"
        self._console.print(line, highlight=False, soft_wrap=True)


def view(comparisons: Sequence[Comparison]) -> Table:
    """Formats the ratios for a terminal."""
    shown = Table(title="allm as installed / llama-server, medians of the rounds", title_justify="left")
    for head in ("weights", "prompts", "clients", "tokens/s", "target", "tuned", "first token", "within 5% + 10 ms"):
        shown.add_column(head, justify="right")
    for head in ("gap p50", "p95/p50", "memory", "rounds' spread", "peer's setting", "errors"):
        shown.add_column(head, justify="right")
    for one in comparisons:
        case = one.case
        shown.add_row(
            case.precision,
            case.prompt_set,
            str(case.concurrency),
            f"[{'green' if one.fast_enough else 'red'}]{one.speed:.2f}x[/]",
            f"{case.target:.2f}x",
            f"{one.tuned_speed:.2f}x",
            f"{one.first_token:.2f}x",
            "[green]yes[/]" if one.prompt_enough else f"[red]{one.ours.ttft_p50_ms - one.peer.ttft_p50_ms:+.0f} ms[/]",
            f"{one.gap:.2f}x",
            f"{one.evenness:.1f}",
            f"{one.ours.loaded_mib:.0f}, {one.peer.loaded_mib:.0f} MiB",
            f"{one.ours.spread_percent:.0f}%, {one.peer.spread_percent:.0f}%",
            one.setting,
            f"{one.ours.errors}, {one.peer.errors}",
        )
    return shown


def machine() -> dict[str, str | int]:
    """Describes the machine and the software of the measurement."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text("utf-8").splitlines() if "model name" in line
        ]
        cpu = names[0] if names else cpu
    return {"cpu": cpu, "cores": os.cpu_count() or 0, "system": f"{platform.system()} {platform.release()}"}


def save(plan: Plan, comparisons: Sequence[Comparison], entries: Sequence[Entry], features: dict[str, str]) -> Path:
    """Writes the results as JSON and, if the plan is complete, as the chart and the table of the README."""
    RESULTS_DIR.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    document = {
        "date": now.isoformat(timespec="seconds"),
        "machine": machine(),
        "llama_cpp_python": version("llama-cpp-python"),
        "features": features,
        "plan": plan,
        "settings": SETTINGS,
        "comparisons": comparisons,
        "turns": entries,
    }
    path = RESULTS_DIR / f"{now:%Y-%m-%d}{'' if plan.complete else '-partial'}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    if not plan.complete:
        return path
    (RESULTS_DIR / "latest.md").write_text(markdown(comparisons), encoding="utf-8")
    caption = f"{machine()['cores']} CPU cores, SmolLM2-135M, medians of {plan.rounds} rounds, {now:%Y-%m-%d}"
    (RESULTS_DIR / "latest.svg").write_text(draw(comparisons, caption), encoding="utf-8")
    return path


def compared(plan: Plan, console: Console, *, noise_floor: bool = False) -> list[Comparison]:
    """Builds llama-server, runs a plan, and saves the result unless it is the noise floor."""
    binary = build(console)
    features = {
        "allm": compute_features(installed_library()),
        "llama-server": compute_features(binary.parent / "libllama.so"),
    }
    if len(set(features.values())) > 1:
        console.print(f"[yellow]The two were not compiled alike: {features}[/]")
    runner = Runner(plan, binary, noise_floor, console)
    comparisons = [runner.compare(case) for case in plan.cases]
    console.print(view(comparisons))
    if not noise_floor:
        console.print(f"Written to {save(plan, comparisons, runner.entries, features)}")
    return comparisons


def main(
    precision: Annotated[list[Precision] | None, typer.Option(help="Weights; may be repeated.")] = None,
    prompts: Annotated[list[PromptSet] | None, typer.Option(help="Prompt sets; may be repeated.")] = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Numbers of clients; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each server is measured in each case.")] = ROUNDS,
    threads: Annotated[int, typer.Option(help="Compute threads of both servers; 0: one for each core.")] = 0,
    quick: Annotated[bool, typer.Option(help="Fewer requests and a single round.")] = False,
    noise_floor: Annotated[bool, typer.Option(help="llama-server on both sides; nothing is saved.")] = False,
) -> None:
    """Measures allm against llama-server and writes the ratios, a chart and the raw figures to bench/results."""
    plan = Plan(
        precisions=precision or list(Precision),
        prompt_sets=prompts or list(PromptSet),
        concurrencies=concurrency or CONCURRENCIES,
        rounds=1 if quick else rounds,
        quick=quick,
        threads=threads,
    )
    comparisons = compared(plan, Console(), noise_floor=noise_floor)
    if any(one.ours.errors or one.peer.errors for one in comparisons):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
