"""What a runtime must do so that the batch loop can drive it: make a batch of images, and be steered between its steps.

A runtime knows prompts, seeds and pixels; it knows no request, no client and no count of images. `fit` may be called
from any thread, all else from one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.image.engine.messages import EngineOptions, Mode, Ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What images have in common that are computed together."""

    mode: Mode
    width: int  # pixels
    height: int
    steps: int
    guidance: float
    scheduler: str  # one of `Ready.schedulers`
    strength: float  # 1.0 of images made from text alone
    negative: bool  # whether they have negative prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One image that is to be made."""

    prompt: str
    negative: str
    seed: int
    image: bytes | None  # width x height RGB
    mask: bytes | None  # width x height: 255 is painted anew


@dataclass(frozen=True, slots=True)
class Fit:
    """How much of a text encoder a prompt fills: of the one that has the least room left."""

    tokens: int  # without the encoder's own marks
    limit: int


class Preview(Protocol):
    """The images of a batch between two of its steps."""

    def __call__(self, rows: Sequence[int]) -> list[bytes]:
        """What these drafts look like so far, as RGB; nothing where the model's latents cannot be decoded early."""


class AfterStep(Protocol):
    """Called between two steps of a batch."""

    def __call__(self, step: int, steps: int, preview: Preview) -> Collection[int]:
        """`step` of `steps` is done, from 1. Returns the drafts that are still wanted, as indexes."""


class Runtime(Protocol):
    """A loaded model."""

    ready: Ready

    def fit(self, prompt: str) -> Fit:
        """Counts a prompt's tokens."""

    def generate(
        self, recipe: Recipe, drafts: Sequence[Draft], after_step: AfterStep, beat: Callable[[], None]
    ) -> list[bytes | None]:
        """Makes images together: each one's RGB, and None for those that are no longer wanted.

        When none is, it ends at once. `beat` is called now and then where there are no steps: while prompts are encoded
        and pixels decoded.

        Raises:
            EngineError: OUT_OF_MEMORY or INTERNAL; the batch is lost.
        """


Loader = Callable[[EngineOptions, Callable[[float], None]], Runtime]
