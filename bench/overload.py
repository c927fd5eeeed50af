"""Goodput of allm under overload, at up to four times its capacity.

    python -m bench.overload [--seconds 60] [--deadline 30]

Requests arrive at a steady mean rate, independent of the answers to earlier ones. Each carries its deadline in
`x-request-timeout`; only answers that are complete by then count. A closed loop first measures the capacity in requests
per second; the loads are shares of that rate.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from bench.connection import Address, Connection
from bench.contender import Scenario, allm
from bench.level import percentile
from bench.load import Target, request_body
from bench.process import running
from bench.prompts import PromptSet
from bench.weights import Precision, gguf

RESULT = Path(__file__).parent / "results" / "overload.md"
SHARES = (0.5, 1.0, 2.0, 4.0)  # of the capacity
CLIENTS = 8  # of the closed loop that measures the capacity: one for each slot
TOKENS = 16  # of an answer: short, so that many fit into a load
DEADLINES = 5  # the minimum length of a load; the first of them does not count
GOAL = 0.9  # of the best goodput, at the highest load
_SHOWN = 60  # characters of a reason


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one load."""

    share: float  # of the capacity
    rate: float  # requests sent per second
    seconds: float  # duration of the load
    goodput: float  # answers per second that met their deadline, once the queue had reached its full length
    sent: int
    good: int  # complete by their deadline
    refused: int  # with 429
    late: int  # with 504 or an error event about the deadline
    failed: Counter[str]  # anything else
    answer_s: Sequence[float]  # of good answers, until the answer was complete
    refusal_s: Sequence[float]


async def capacity(target: Target, requests: int) -> float:
    """Measures the requests per second of a closed loop."""
    address = Address.of(target.url)
    waiting = iter([_request(target, address, f"capacity {number}", 600.0) for number in range(requests + CLIENTS)])
    ended: list[float] = []

    async def work() -> None:
        client = Connection(address, 600.0, target.says_done)
        for request in waiting:
            answer = await client.send(request, target.output_tokens)
            if answer.error:
                raise RuntimeError(f"the load without deadlines failed: {answer.error}")
            ended.append(time.perf_counter())
        client.close()

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    first = ended[CLIENTS - 1]  # all slots are full until here
    return (len(ended) - CLIENTS) / (ended[-1] - first)


async def load(target: Target, share: float, rate: float, seconds: float, deadline: float) -> Outcome:
    """Sends requests as a Poisson process with a rate, each with a deadline in `deadline` seconds."""
    address = Address.of(target.url)
    random = Random(f"arrivals {share}")  # noqa: S311 - load, no secret
    found: list[tuple[float, str | None]] = []
    ends: list[float] = []  # ends of good answers, since the start

    async def ask(number: int) -> None:
        client = Connection(address, deadline + 60.0, target.says_done)
        began = time.perf_counter()
        answer = await client.send(_request(target, address, f"{share} {number}", deadline), target.output_tokens)
        took = time.perf_counter() - began
        client.close()
        late = answer.error is None and took > deadline
        found.append((took, "late: complete, but too late" if late else answer.error))
        if found[-1][1] is None:
            ends.append(time.perf_counter() - start)

    tasks: list[asyncio.Task[None]] = []
    start = at = time.perf_counter()
    while at - start < seconds:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(len(tasks))))
        at += random.expovariate(rate)
    await asyncio.gather(*tasks)
    goodput = sum(deadline <= end < seconds for end in ends) / (seconds - deadline)
    return _outcome(share, rate, seconds, goodput, found)


def _outcome(
    share: float, rate: float, seconds: float, goodput: float, found: Sequence[tuple[float, str | None]]
) -> Outcome:
    good = [took for took, error in found if error is None]
    refused = [took for took, error in found if error is not None and error.startswith("HTTP 429")]
    rest = [error for _, error in found if error is not None and not error.startswith("HTTP 429")]
    late = [error for error in rest if error.startswith(("HTTP 504", "late")) or "x-request-timeout" in error]
    others = Counter(error[:_SHOWN] for error in rest if error not in late)
    return Outcome(
        share=share,
        rate=rate,
        seconds=seconds,
        goodput=goodput,
        sent=len(found),
        good=len(good),
        refused=len(refused),
        late=len(late),
        failed=others,
        answer_s=good or [0.0],
        refusal_s=refused or [0.0],
    )


def _request(target: Target, address: Address, seed: str, deadline: float) -> bytes:
    body = request_body(target, PromptSet.UNIQUE, f"{target.seed} {seed}")
    head, _, rest = address.post("/v1/chat/completions", body, target.api_key).partition(b"\r\n")
    return b"\r\n".join((head, f"x-request-timeout: {deadline:g}".encode(), rest))


def report(outcomes: Sequence[Outcome], able: float, deadline: float, noise: str) -> str:
    """Formats the results as Markdown."""
    best = max(outcome.goodput for outcome in outcomes)
    last = outcomes[-1]
    lines = [
        "# Overload",
        "",
        f"`python -m bench.overload`, {datetime.now(UTC):%Y-%m-%d}: SmolLM2-135M-Instruct in bfloat16 behind the",
        f"gateway on {os.cpu_count()} cores, {noise}. A closed loop of {CLIENTS} clients gets {able:.2f} answers",
        f"of {TOKENS} tokens a second. Requests come at shares of that rate, by chance, for {last.seconds:.0f} s each;",
        f"an answer counts if it is whole within {deadline:.0f} s, and goodput is taken once that time has passed.",
        "",
        "| load | requests/s | sent | good | refused (429) | late (504) | failed | goodput/s | of the best "
        "| answer p50 / p95 s | refusal p95 ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        answers = " / ".join(f"{percentile(one.answer_s, percent):.1f}" for percent in (50, 95))
        lines.append(
            f"| {one.share:g}x | {one.rate:.2f} | {one.sent} | {one.good} | {one.refused} | {one.late} "
            f"| {one.failed.total()} | {one.goodput:.2f} | {one.goodput / best:.0%} | {answers} "
            f"| {1000 * percentile(one.refusal_s, 95):.0f} |"
        )
    verdict = "holds" if last.goodput >= GOAL * best else "does not hold"
    lines += ["", f"The goal, {GOAL:.0%} of the best goodput at {last.share:g}x, {verdict}."]
    lines += [f"* {one.share:g}x: {count} x {reason}" for one in outcomes for reason, count in one.failed.items()]
    return "\n".join(lines) + "\n"


async def _measure(
    target: Target, seconds: float, deadline: float, requests: int
) -> tuple[float, float, list[Outcome]]:
    """Returns capacity, deadline and outcomes."""
    able = await capacity(target, requests)
    deadline = deadline or 2 * CLIENTS / able
    seconds = max(seconds, DEADLINES * deadline)
    return able, deadline, [await load(target, share, share * able, seconds, deadline) for share in SHARES]


def main(
    seconds: Annotated[float, typer.Option(help="How long each load lasts.")] = 60.0,
    deadline: Annotated[
        float, typer.Option(help="Seconds within which an answer counts; 0: twice what it takes in the closed loop.")
    ] = 0.0,
    requests: Annotated[int, typer.Option(help="Of the closed loop that finds the capacity.")] = 96,
    out: Annotated[Path, typer.Option(help="Where the result is written.")] = RESULT,
) -> None:
    """Measures goodput at 0.5, 1, 2 and 4 times the capacity; fails if the last is below 90% of the best."""
    before = os.getloadavg()[0]
    with running(allm(Scenario(gguf(Precision.BF16), CLIENTS))) as server:
        target = Target(server.url, server.model, output_tokens=TOKENS, seed=str(time.time_ns()))
        able, deadline, outcomes = uvloop.run(_measure(target, seconds, deadline, requests))
    text = report(outcomes, able, deadline, f"load average before {before:.1f}")
    out.write_text(text, encoding="utf-8")
    Console(soft_wrap=True).print(text, markup=False)
    if outcomes[-1].goodput < GOAL * max(outcome.goodput for outcome in outcomes):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
