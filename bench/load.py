"""A closed-loop load generator for any endpoint with OpenAI's streaming chat completions.

    python -m bench.load --url http://127.0.0.1:8080

Each of `concurrency` clients sends its next request as soon as the last one is answered. Every request asks for the
same number of output tokens, with the extension `ignore_eos`, so that all do the same work. An answer with another
number of tokens, or without usage, is an error. The warm-up runs first and does not count; the measured window lasts
from the first measured request to the end of the last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.request import Request, urlopen

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from bench.chat import Answer
from bench.connection import Address, Connection
from bench.level import Level, LevelResult, summarise
from bench.noise import NoiseMeter
from bench.prompts import OUTPUT_TOKENS, PromptSet
from bench.prompts import messages as words

CONCURRENCIES = (1, 8, 32)
_REQUESTS = {1: 8, 8: 32, 32: 96}
_QUICK_REQUESTS = {1: 3, 8: 16, 32: 32}
Messages = Callable[[PromptSet, str], list[dict[str, Any]]]  # makes a chat of a set from a seed


@dataclass(frozen=True, slots=True)
class Target:
    """The endpoint under load."""

    url: str
    model: str
    api_key: str = ""
    pid: int | None = None  # the server's process, to measure its CPU time
    output_tokens: int = OUTPUT_TOKENS
    timeout_seconds: float = 300.0  # of one request
    keep_alive: bool = False  # one connection for each client instead of one for each request
    seed: str = "0"  # decides the prompts
    messages: Messages = words
    # Makes the server continue past the model's end token; OpenAI's API has no field for this.
    endless: Mapping[str, object] = field(default_factory=lambda: {"ignore_eos": True})
    says_done: bool = True  # it ends its streams with [DONE]


def level_of(prompt_set: PromptSet, concurrency: int, quick: bool = False) -> Level:
    """Returns the usual level of a concurrency: enough requests for a median, few enough for two cores."""
    table = _QUICK_REQUESTS if quick or prompt_set is PromptSet.LONG else _REQUESTS
    return Level(prompt_set, concurrency, table.get(concurrency, 3 * concurrency), warmup=max(2, concurrency))


def request_body(target: Target, prompt_set: PromptSet, seed: str) -> bytes:
    """Returns the JSON of one request."""
    return msgspec.json.encode(
        {
            "model": target.model,
            "messages": target.messages(prompt_set, seed),
            "max_tokens": target.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **target.endless,
        }
    )


async def run_level(target: Target, level: Level) -> LevelResult:
    """Warms up, then measures one level."""
    address = Address.of(target.url, target.keep_alive)
    total = level.warmup + level.requests
    bodies = [
        request_body(target, level.prompt_set, f"{target.seed} {level.concurrency} {number}") for number in range(total)
    ]
    requests = [address.post("/v1/chat/completions", body, target.api_key) for body in bodies]
    clients = [Connection(address, target.timeout_seconds, target.says_done) for _ in range(level.concurrency)]
    try:
        await _closed_loop(clients, requests[: level.warmup], target.output_tokens)
        meter = NoiseMeter(target.pid)
        started = time.perf_counter()
        answers = await _closed_loop(clients, requests[level.warmup :], target.output_tokens)
        wall_s = time.perf_counter() - started
        return summarise(level, answers, wall_s, meter.read())
    finally:
        for client in clients:
            client.close()


async def _closed_loop(clients: Sequence[Connection], requests: Sequence[bytes], wanted_tokens: int) -> list[Answer]:
    waiting = iter(requests)
    answers: list[Answer] = []

    async def work(client: Connection) -> None:
        for request in waiting:
            answers.append(await client.send(request, wanted_tokens))

    await asyncio.gather(*(work(client) for client in clients))
    return answers


def measure(target: Target, levels: Sequence[Level]) -> list[LevelResult]:
    """Runs the levels one after another in a separate event loop."""

    async def all_levels() -> list[LevelResult]:
        return [await run_level(target, level) for level in levels]

    return uvloop.run(all_levels())


def first_model(url: str, api_key: str = "") -> str | None:
    """Returns the first model that the endpoint lists, if any."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with urlopen(Request(url.rstrip("/") + "/v1/models", headers=headers), timeout=10) as response:
        listed: list[dict[str, Any]] = msgspec.json.decode(response.read()).get("data") or []
    return str(listed[0]["id"]) if listed else None


def table(results: Sequence[LevelResult], title: str) -> Table:
    """Formats the results for a terminal."""
    view = Table(title=title, title_justify="left")
    heads = ("prompts", "clients", "tokens/s", "TTFT p50 / p95 ms", "gap p50 / p95 / max ms", "prompt (cached)")
    for head in (*heads, "client us/event", "server ms/token", "steal, others %", "errors"):
        view.add_column(head, justify="right")
    for result in results:
        ttft, gap, noise = result.ttft_ms, result.gap_ms, result.noise
        view.add_row(
            result.prompt_set,
            str(result.concurrency),
            f"{result.tokens_per_s:.1f}",
            f"{ttft.p50:.0f} / {ttft.p95:.0f}",
            f"{gap.p50:.1f} / {gap.p95:.1f} / {gap.max:.0f}",
            f"{result.prompt_tokens:.0f} ({result.cached_tokens:.0f})",
            f"{result.client_cpu_us_per_event:.0f}",
            f"{result.server_cpu_ms_per_token:.1f}",
            f"{noise.steal_percent:.1f}, {noise.other_percent:.1f}",
            "\n".join(f"{count} x {reason}" for reason, count in result.errors.items()) or "0",
        )
    return view


def main(
    url: Annotated[str, typer.Option(help="The endpoint, without /v1.")] = "http://127.0.0.1:8080",
    model: Annotated[str, typer.Option(help="The model; by default the first one listed.")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")] = "",
    concurrency: Annotated[list[int] | None, typer.Option(help="Numbers of clients; may be repeated.")] = None,
    prompts: Annotated[list[PromptSet] | None, typer.Option(help="Prompt sets; may be repeated.")] = None,
    requests: Annotated[int, typer.Option(help="Measured requests of each level; 0: 8, 32, 96 for 1, 8, 32.")] = 0,
    pid: Annotated[int, typer.Option(help="The server's process id: measures its CPU time too.")] = 0,
    keep_alive: Annotated[bool, typer.Option(help="One connection for each client, not for each request.")] = False,
    seed: Annotated[str, typer.Option(help="Another seed, other prompts.")] = "",
    quick: Annotated[bool, typer.Option(help="Fewer requests.")] = False,
    json: Annotated[Path | None, typer.Option(help="Where to write the results as JSON.")] = None,
) -> None:
    """Puts closed-loop load on an OpenAI-compatible endpoint and prints the figures."""
    name = model or first_model(url, api_key)
    if name is None:
        raise typer.BadParameter(f"{url} lists no model: name one with --model")
    target = Target(url, name, api_key, pid or None, keep_alive=keep_alive, seed=seed or str(time.time_ns()))
    steps = concurrency or CONCURRENCIES
    levels = [level_of(prompt_set, clients, quick) for prompt_set in prompts or PromptSet for clients in steps]
    if requests:
        levels = [replace(level, requests=requests) for level in levels]
    results = measure(target, levels)
    Console().print(table(results, f"{name} at {url}"))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2))
    if any(result.errors for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
