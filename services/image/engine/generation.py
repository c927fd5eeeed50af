"""A request in the worker: which of its images wait, which are being made, and how far it is."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from services.image.engine.limits import mode_of
from services.image.engine.messages import Generate
from services.image.engine.runtime import Draft, Recipe


@dataclass(slots=True)
class _Image:
    """One image of a request."""

    steps: int = 0  # that are done
    partials: int = 0  # previews that were told


class Generation:
    """A request that fits the model."""

    def __init__(self, request: Generate, default_scheduler: str) -> None:
        self._request = request
        self.number = request.request
        self.client = request.client
        self.deadline = math.inf if request.deadline is None else request.deadline  # on the monotonic clock
        self.recipe = Recipe(
            mode=mode_of(request),
            width=request.width,
            height=request.height,
            steps=request.steps,
            guidance=request.guidance,
            scheduler=request.scheduler or default_scheduler,
            strength=1.0 if request.image is None else request.strength,
            negative=bool(request.negative),
        )
        self.waiting = list(range(request.count))  # images, the next one first
        self.running = 0  # images that are being made
        self.alone = False  # whether its images are made one by one, because a batch with them has failed
        self.gone = False  # cancelled or refused
        self.computed = 0  # steps, also of batches that failed
        self._left = request.count  # images that are not told
        self._images = [_Image() for _ in range(request.count)]
        self._started: float | None = None
        self._told = 0

    @property
    def done(self) -> bool:
        """Whether all images are told."""
        return not self._left

    @property
    def seconds(self) -> float:
        """Since its first image's turn."""
        return time.monotonic() - self._started if self._started is not None else 0.0

    def start(self) -> int:
        """Takes the next image that waits; its index."""
        if self._started is None:
            self._started = time.monotonic()
        self.running += 1
        return self.waiting.pop(0)

    def give_back(self, index: int) -> None:
        """The image's batch has failed: it waits again."""
        self.running -= 1
        self.waiting.append(index)
        self.waiting.sort()

    def finish(self, index: int) -> None:
        """The image is told."""
        self.running -= 1
        self._left -= 1

    def draft(self, index: int) -> Draft:
        """What is to be made of an image."""
        request = self._request
        return Draft(
            prompt=request.prompt,
            negative=request.negative,
            seed=(request.seed + index) % 2**64,
            image=request.image,
            mask=request.mask,
        )

    def stepped(self, index: int, step: int) -> None:
        """A step of an image is done."""
        self.computed += 1
        image = self._images[index]
        image.steps = max(image.steps, step)  # a batch that failed is done again

    def progress(self) -> int | None:
        """The mean of its images' steps, where it is wanted and has grown."""
        mean = sum(image.steps for image in self._images) // len(self._images)
        if not self._request.progress or mean <= self._told:
            return None
        self._told = mean
        return mean

    def partial(self, index: int, step: int, steps: int) -> int | None:
        """The number of the preview that is due of an image after a step, and is now counted as told."""
        image = self._images[index]
        if image.partials >= self._request.partials or step >= steps:
            return None
        if step < max(1, steps * (image.partials + 1) // (self._request.partials + 1)):
            return None
        image.partials += 1
        return image.partials - 1
