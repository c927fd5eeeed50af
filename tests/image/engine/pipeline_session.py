"""Images of a real pipeline: short helpers for parameters and drafts, and pixels as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from services.image.engine.messages import Draft, Parameters
from services.image.engine.runtime import Preview

if TYPE_CHECKING:
    from services.image.engine.runtimes.diffusers.engine import DiffusersEngine


Pixels = npt.NDArray[np.uint8]
SIDE = 32
PARAMETERS = Parameters(width=SIDE, height=SIDE, steps=3, guidance=3.0, scheduler="")
PROMPTS = ("a red circle", "x", "two blue squares", "a far longer prompt than those")


def parameters(engine: DiffusersEngine, **changed: Any) -> Parameters:
    """Builds parameters; the default scheduler is the model's own."""
    return replace(PARAMETERS, **{"scheduler": engine.ready.default_scheduler, **changed})


def draft(seed: int, prompt: str = PROMPTS[0], **changed: Any) -> Draft:
    return replace(Draft(prompt=prompt, seed=seed), **changed)


def noise_image() -> Image.Image:
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


def made(engine: DiffusersEngine, chosen: Parameters, *drafts: Draft) -> list[Pixels]:
    """Generates a batch; returns its images [height, width, 3]."""
    images = engine.generate(chosen, drafts, everybody, lambda: None)
    return [as_array(image, chosen) for image in images if image is not None]


def as_array(pixels: bytes, chosen: Parameters) -> Pixels:
    return np.frombuffer(pixels, dtype=np.uint8).reshape(chosen.height, chosen.width, 3)


def furthest(one: Pixels, other: Pixels) -> int:
    """Returns the largest difference between two pixels in any channel."""
    return int(np.abs(one.astype(int) - other.astype(int)).max())
