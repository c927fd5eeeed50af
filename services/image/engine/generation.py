"""The worker's state of a request: its waiting and running images, and its progress."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from services.image.engine.messages import Draft, Generate


@dataclass(slots=True)
class _Image:
    """The progress of one image."""

    steps: int = 0  # done
    partials: int = 0  # previews sent


class Generation:
    """A checked request and its images."""

    def __init__(self, request: Generate) -> None:
        self._generate = request
        self.request = request.request
        self.client = request.client
        self.deadline = math.inf if request.deadline is None else request.deadline  # on the monotonic clock
        self.parameters = request.parameters
        self.kind = request.parameters, request.draft.mode, bool(request.draft.negative)  # equal in all of a batch
        self.waiting = list(range(request.count))  # indexes of waiting images, the next one first
        self.running = 0  # images in the current batch
        self.alone = False  # its images run one by one, because a batch with them failed
        self.gone = False  # cancelled or refused
        self.computed = 0  # steps, including those of failed batches
        self._left = request.count  # images that are not sent yet
        self._images = [_Image() for _ in range(request.count)]
        self._started: float | None = None
        self._reported = 0

    @property
    def done(self) -> bool:
        """True once all images are sent."""
        return not self._left

    @property
    def seconds(self) -> float:
        """Seconds since its first image was started."""
        return time.monotonic() - self._started if self._started is not None else 0.0

    def start(self) -> int:
        """Takes the next waiting image and returns its index."""
        if self._started is None:
            self._started = time.monotonic()
        self.running += 1
        return self.waiting.pop(0)

    def give_back(self, index: int) -> None:
        """Requeues an image whose batch failed."""
        self.running -= 1
        self.waiting.append(index)
        self.waiting.sort()

    def finish(self, index: int) -> None:
        """Marks an image as sent."""
        self.running -= 1
        self._left -= 1

    def draft(self, index: int) -> Draft:
        """Returns the runtime's input for an image."""
        first = self._generate.draft
        return replace(first, seed=(first.seed + index) % 2**64)

    def stepped(self, index: int, step: int) -> None:
        """Counts a finished step of an image."""
        self.computed += 1
        image = self._images[index]
        image.steps = max(image.steps, step)  # a failed batch is computed again

    def progress(self) -> int | None:
        """Returns the mean of its images' steps if progress is requested and the mean has grown, else None."""
        mean = sum(image.steps for image in self._images) // len(self._images)
        if not self._generate.progress or mean <= self._reported:
            return None
        self._reported = mean
        return mean

    def partial(self, index: int, step: int, steps: int) -> int | None:
        """Returns the number of the preview that is due after a step, and counts it as sent; None if none is due."""
        image = self._images[index]
        if image.partials >= self._generate.partials or step >= steps:
            return None
        if step < max(1, steps * (image.partials + 1) // (self._generate.partials + 1)):
            return None
        image.partials += 1
        return image.partials - 1
