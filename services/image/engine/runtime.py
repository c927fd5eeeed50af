"""The interface between the batch loop and a runtime: compute a batch of images, with a callback between steps.

A runtime knows prompts, seeds and pixels, but no requests, clients or image counts. `fit` may be called from any
thread, everything else from one thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.image.engine.messages import Draft, EngineOptions, Parameters, PipelineReady


@dataclass(frozen=True, slots=True)
class PromptLength:
    """A prompt's tokens and the limit of the text encoder that has the least room left."""

    tokens: int  # without special tokens
    limit: int


# Decodes the images of a batch between two of its steps: takes the indexes of drafts and returns their previews as RGB;
# empty if the model's latents cannot be decoded early.
Preview = Callable[[Sequence[int]], list[bytes]]
# The callback after each step of a batch: step `step` (from 1) of `steps` is done. Returns the indexes of the drafts
# that are still wanted.
AfterStep = Callable[[int, int, Preview], Collection[int]]


class Runtime(Protocol):
    """A loaded model."""

    ready: PipelineReady

    def fit(self, prompt: str) -> PromptLength:
        """Counts a prompt's tokens."""

    def generate(
        self, parameters: Parameters, drafts: Sequence[Draft], after_step: AfterStep, beat: Callable[[], None]
    ) -> list[bytes | None]:
        """Computes drafts of one mode together. Returns the RGB of each, None for those that are no longer wanted.

        Stops immediately when no image is wanted. Calls `beat` now and then while no steps run: while prompts are
        encoded and pixels decoded.

        Raises:
            EngineError: OUT_OF_MEMORY or INTERNAL; the batch is lost.
        """


Loader = Callable[[EngineOptions, Callable[[float], None]], Runtime]
