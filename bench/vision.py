"""Chats with a picture beside llama-server with the same two files, the text model and its projector.

    python -m bench.vision MODEL.gguf MMPROJ.gguf [--rounds 3] [--clients 8]

Both files are alone in one folder.
Every request has another drawing and other words, so that no cache answers for the model: its file is decoded, the
picture encoded, and the prompt computed. allm runs as installed, and decodes in a confined process.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated, Any

import typer
from PIL import Image, ImageDraw
from rich.console import Console

from bench.contender import SETTINGS, Scenario, allm, llama_server
from bench.llama_server import build
from bench.load import level_of
from bench.prompts import PromptSet
from bench.prompts import messages as words
from bench.row import Row, counted, table
from bench.turn import Turn, take

CLIENTS = (1, 8)
SIDE = 256  # pixels of a picture
SHAPES = 6
BAR = 0.95


def messages(prompt_set: PromptSet, seed: str) -> list[dict[str, Any]]:
    """Returns a chat whose message has a drawing before its words."""
    (message,) = words(prompt_set, seed)
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_drawing(seed)}"}}
    return [{"role": "user", "content": [picture, {"type": "text", "text": message["content"]}]}]


def _drawing(seed: str) -> str:
    random, file = Random(seed), io.BytesIO()  # noqa: S311 - a drawing, no secret
    drawn = Image.new("RGB", (SIDE, SIDE), _colour(random))
    pen = ImageDraw.Draw(drawn)
    for _ in range(SHAPES):
        left, top, size = (random.randrange(SIDE) for _ in range(3))
        pen.ellipse((left, top, left + size, top + size), _colour(random))
    drawn.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _colour(random: Random) -> tuple[int, ...]:
    return tuple(random.randrange(256) for _ in range(3))


def beside_llama_server(
    text: Path, projector: Path, rounds: int, clients: Sequence[int], console: Console
) -> list[Row]:
    """Measures both servers in turn; returns the speed and the time to the first token of each number of clients."""
    binary = build(console)
    found = []
    for count in clients:
        scenario = Scenario(text, count, projector=projector)
        level = level_of(PromptSet.UNIQUE, count, quick=True)
        settings = {one.name: partial(llama_server, binary, one, scenario) for one in SETTINGS}
        trials = {name: take(launch, level, "trial", messages).result for name, launch in settings.items()}
        best = max(trials, key=lambda name: trials[name].tokens_per_s)
        launches = {"allm": partial(allm, scenario, tuned=False), "llama-server": settings[best]}
        turns: dict[str, list[Turn]] = {name: [] for name in launches}
        for number in range(rounds):
            for name, launch in launches.items():
                turns[name].append(take(launch, level, str(number), messages))
                console.print(_line(count, number, name, turns[name][-1]), highlight=False, soft_wrap=True)
        found += _rows(counted(count, "client"), turns["allm"], turns["llama-server"])
    return found


def _line(count: int, number: int, name: str, turn: Turn) -> str:
    result = turn.result
    line = f"{count} clients  round {number + 1}  {name:12} {result.tokens_per_s:6.1f} tokens/s"
    line += f"  first token {result.ttft_ms.p50:5.0f} ms  prompt {result.prompt_tokens:.0f} tokens"
    return line + f" ({result.cached_tokens:.0f} cached)  {result.errors or ''}"


def _rows(case: str, ours: Sequence[Turn], theirs: Sequence[Turn]) -> list[Row]:
    speed, peer_speed = (median(turn.result.tokens_per_s for turn in turns) for turns in (ours, theirs))
    first, peer_first = (median(turn.result.ttft_ms.p50 for turn in turns) for turns in (ours, theirs))
    return [
        Row(case, "tokens/s", speed, peer_speed, "llama-server", BAR),
        Row(case, "first token, ms", first, peer_first, "llama-server", 1 / BAR, at_most=True),
    ]


def main(
    text: Annotated[Path, typer.Argument(help="The text model as GGUF.")],
    projector: Annotated[Path, typer.Argument(help="Its projector, in the same folder.")],
    rounds: Annotated[int, typer.Option(min=1, help="How often each server is measured.")] = 3,
    clients: Annotated[list[int] | None, typer.Option(help="Numbers of clients; may be repeated.")] = None,
) -> None:
    """Measures both servers in turn and prints the medians of the rounds."""
    console = Console()
    rows = beside_llama_server(text, projector, rounds, clients or CLIENTS, console)
    console.print(table(rows), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
