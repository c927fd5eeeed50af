"""Measurements of llama-server alone under many settings: the source of the three settings in `bench.contender`.

python -m bench.tune --gguf MODEL.gguf
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from bench.contender import BUILD_DIR, Scenario, Setting, llama_server
from bench.llama_server import build
from bench.load import CONCURRENCIES, level_of, table
from bench.prompts import PromptSet
from bench.turn import take

CANDIDATES = tuple(
    Setting(f"{cache} ub{ubatch} fa-{attention}{name}", (*flag, "-ub", ubatch, "-fa", attention, *extra))
    for (cache, flag), ubatch, attention, (name, extra) in product(
        (("unified", ("--kv-unified",)), ("per-slot", ("--no-kv-unified",))),
        ("512", "2048"),
        ("on", "off"),
        (("", ()), (" cram0", ("-cram", "0"))),
    )
)


def main(
    gguf: Annotated[Path, typer.Option(help="The model's file.")],
    concurrency: Annotated[list[int] | None, typer.Option(help="Numbers of clients; may be repeated.")] = None,
    prompts: Annotated[list[PromptSet] | None, typer.Option(help="Prompt sets; may be repeated.")] = None,
    only: Annotated[str, typer.Option(help="Settings whose name contains all of these words.")] = "",
    extra: Annotated[str, typer.Option(help="More arguments for every setting, as one string.")] = "",
    rounds: Annotated[int, typer.Option(help="How often to go through all settings.")] = 1,
    quick: Annotated[bool, typer.Option(help="Fewer requests.")] = False,
    json: Annotated[Path, typer.Option(help="Where to add the results, one JSON line each.")] = BUILD_DIR
    / "tune.jsonl",
) -> None:
    """Measures llama-server's settings one after another."""
    binary = build(Console())
    settings = [setting for setting in CANDIDATES if all(word in setting.name for word in only.split())]
    console = Console()
    for number, clients in product(range(rounds), concurrency or CONCURRENCIES):
        for setting in settings:
            chosen = replace(setting, arguments=(*setting.arguments, *extra.split()))
            launch = partial(llama_server, binary, chosen, Scenario(gguf, clients))
            turns = [take(launch, level_of(one, clients, quick), str(number)) for one in prompts or PromptSet]
            console.print(table([turn.result for turn in turns], f"{gguf.name}, {setting.name} {extra}"))
            with json.open("ab") as lines:
                for turn in turns:
                    row = {"gguf": gguf.name, "setting": f"{setting.name} {extra}".strip(), "turn": turn}
                    lines.write(msgspec.json.encode(row) + b"\n")


if __name__ == "__main__":
    typer.run(main)
