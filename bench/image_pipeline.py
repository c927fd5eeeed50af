"""A plain diffusers pipeline in its own process: `python -m bench.image_pipeline PLAN`, with a plan as JSON.

The process loads its model, reads `Level` objects from standard input, one JSON line each, and answers each with a
`Timing`. It makes the images of a level one after another or in batches: the pipeline takes one caller at a time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

MODEL_FOLDER = Path(__file__).parents[1] / "training" / "shapes_sd" / "weights"
SIDE = 64  # pixels
_COLOURS = ("red", "green", "blue", "yellow")
_SHAPES = ("circle", "square", "triangle", "ring")
_PROMPTS = [f"a {colour} {shape} on a white background" for shape, colour in product(_SHAPES, _COLOURS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parameters of generation, the same for all contenders."""

    threads: int
    steps: int
    guidance: float
    scheduler: str = "ddim"  # the model's own
    dtype: str = "float32"
    batch: int = 1  # images per call

    @property
    def name(self) -> str:
        """The name in tables."""
        return "the pipeline in a loop" if self.batch == 1 else f"the pipeline with {self.batch} prompts"


@dataclass(frozen=True, slots=True)
class Level:
    """The images to generate and the number of callers."""

    clients: int
    seeds: Sequence[int]  # of each image


@dataclass(frozen=True, slots=True)
class Timing:
    """The times and pixels of a level."""

    wall_s: float
    latencies_s: Sequence[float]  # of each image
    pictures: Sequence[bytes]  # RGB of each, in the order of the level


def prompt_of(seed: int) -> str:
    """Returns the prompt for a seed."""
    return _PROMPTS[seed % len(_PROMPTS)]


class PlainPipeline:
    """Stable Diffusion, called as its documentation shows."""

    def __init__(self, plan: Plan) -> None:
        import diffusers  # noqa: PLC0415 - the parent process needs none of it
        import torch  # noqa: PLC0415

        torch.set_num_threads(plan.threads)
        diffusers.utils.logging.disable_progress_bar()
        self._plan = plan
        self._generator = torch.Generator
        kind: Any = diffusers.StableDiffusionPipeline
        self._pipeline = kind.from_pretrained(MODEL_FOLDER, dtype=getattr(torch, plan.dtype), use_safetensors=True)
        self._pipeline.set_progress_bar_config(disable=True)

    def draw(self, seeds: Sequence[int]) -> list[bytes]:
        """Generates an image for each seed with one call; returns their RGB bytes."""
        images = self._pipeline(
            [prompt_of(seed) for seed in seeds],
            width=SIDE,
            height=SIDE,
            num_inference_steps=self._plan.steps,
            guidance_scale=self._plan.guidance,
            generator=[self._generator().manual_seed(seed) for seed in seeds],
        ).images
        return [image.tobytes() for image in images]

    def measure(self, level: Level) -> Timing:
        """Generates the images of a level, for any number of callers."""
        latencies: list[float] = []
        pictures: list[bytes] = []
        started = time.perf_counter()
        for first in range(0, len(level.seeds), self._plan.batch):
            seeds = level.seeds[first : first + self._plan.batch]
            begun = time.perf_counter()
            pictures += self.draw(seeds)
            latencies += [time.perf_counter() - begun] * len(seeds)
        return Timing(time.perf_counter() - started, latencies, pictures)


def main() -> None:
    """Loads the model, prints an empty line when it is ready, and measures each level that it reads."""
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keeps the libraries' output off the pipe
    pipeline = PlainPipeline(plan)
    pipeline.draw(range(plan.batch))
    print(file=answers, flush=True)
    for line in sys.stdin:
        timing = pipeline.measure(msgspec.json.decode(line, type=Level))
        print(msgspec.json.encode(timing).decode(), file=answers, flush=True)


if __name__ == "__main__":
    main()
