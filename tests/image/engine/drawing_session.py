"""Images of a real pipeline: short helpers for recipes and drafts, and pixels as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from services.image.engine.runtime import Draft, Preview, Recipe

if TYPE_CHECKING:
    from services.image.engine.runtimes.diffusers.engine import DiffusersEngine


Pixels = npt.NDArray[np.uint8]
SIDE = 32
RECIPE = Recipe(
    mode="text_to_image",
    width=SIDE,
    height=SIDE,
    steps=3,
    guidance=3.0,
    scheduler="",
    strength=1.0,
    negative=False,
)
PROMPTS = ("a red circle", "x", "two blue squares", "a far longer prompt than those")


def recipe(engine: DiffusersEngine, **changed: Any) -> Recipe:
    """Builds a recipe; the default scheduler is the model's own."""
    return replace(RECIPE, **{"scheduler": engine.ready.default_scheduler, **changed})


def draft(seed: int, prompt: str = PROMPTS[0], **changed: Any) -> Draft:
    return replace(Draft(prompt=prompt, negative="", seed=seed, image=None, mask=None), **changed)


def drawing() -> Image.Image:
    """Returns an input image of noise."""
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def left_half() -> Image.Image:
    """Returns a mask of the left half."""
    mask = np.zeros((SIDE, SIDE), dtype=np.uint8)
    mask[:, : SIDE // 2] = 255
    return Image.fromarray(mask)


def everybody(step: int, steps: int, preview: Preview) -> Sequence[int]:
    """Keeps all images to the end."""
    return range(100)


def made(engine: DiffusersEngine, chosen: Recipe, *drafts: Draft) -> list[Pixels]:
    """Generates a batch; returns its images [height, width, 3]."""
    images = engine.generate(chosen, drafts, everybody, lambda: None)
    return [as_array(image, chosen) for image in images if image is not None]


def as_array(pixels: bytes, chosen: Recipe) -> Pixels:
    return np.frombuffer(pixels, dtype=np.uint8).reshape(chosen.height, chosen.width, 3)


def furthest(one: Pixels, other: Pixels) -> int:
    """Returns the largest difference between two pixels in any channel."""
    return int(np.abs(one.astype(int) - other.astype(int)).max())
