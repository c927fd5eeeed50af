"""Evaluation of the trained pipeline: the checker judges the pictures of 100 prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from diffusers import StableDiffusionPipeline
from PIL import Image

from training.shapes_sd.caption import plain_caption
from training.shapes_sd.checker import Verdict, judge
from training.shapes_sd.scene import Scene, random_scene

STEPS = 20
GUIDANCE = 2.5
PROMPTS = 100
HELD_OUT_PROMPTS = 30
SEED = 2_026
_BATCH = 10


@dataclass(frozen=True)
class Outcome:
    """One prompt, its picture uint8 [64, 64, 3], and the checker's verdict."""

    scene: Scene
    picture: numpy.ndarray
    verdict: Verdict


def prompts() -> list[Scene]:
    """Returns the evaluation scenes, always the same: all different, the held-out pairs last."""
    rng = numpy.random.default_rng(SEED)
    chosen: dict[Scene, None] = {Scene("red", "circle", "blue"): None}
    while len(chosen) < PROMPTS:
        chosen[random_scene(rng, held_out=len(chosen) >= PROMPTS - HELD_OUT_PROMPTS)] = None
    return list(chosen)


def evaluate(pipeline: StableDiffusionPipeline, scenes: list[Scene], steps: int = STEPS) -> list[Outcome]:
    """Generates a picture of every scene, each with its index as the seed, and judges it."""
    pipeline.set_progress_bar_config(disable=True)
    outcomes = []
    for start in range(0, len(scenes), _BATCH):
        batch = scenes[start : start + _BATCH]
        made = pipeline(
            [plain_caption(scene) for scene in batch],
            num_inference_steps=steps,
            guidance_scale=GUIDANCE,
            generator=[torch.Generator().manual_seed(start + index) for index in range(len(batch))],
            output_type="np",
        ).images
        pictures = (made * 255).round().astype(numpy.uint8)
        outcomes += [Outcome(*pair, judge(pair[1])) for pair in zip(batch, pictures, strict=True)]
    return outcomes


def summary(outcomes: list[Outcome]) -> str:
    """Formats the number of correct pictures."""
    lines = []
    for name, part in (("all", outcomes), ("held out", [each for each in outcomes if each.scene.held_out])):
        colours = sum(each.verdict.colours_right(each.scene) for each in part)
        right = sum(each.verdict.right(each.scene) for each in part)
        lines.append(f"{name}: colours {colours} of {len(part)}, colours and shape {right} of {len(part)}")
    return "\n".join(lines)


def sheet(outcomes: list[Outcome], path: Path, columns: int = 10) -> None:
    """Saves all pictures as one contact sheet."""
    rows = [outcomes[start : start + columns] for start in range(0, len(outcomes), columns)]
    blank = numpy.full((64, 64, 3), 255, dtype=numpy.uint8)
    tiles = [[each.picture for each in row] + [blank] * (columns - len(row)) for row in rows]
    Image.fromarray(numpy.concatenate([numpy.concatenate(row, axis=1) for row in tiles])).save(path)
