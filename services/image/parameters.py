"""The core's request, and its resolution to exact parameters: its own values, else the model's defaults.

Parameters that the model cannot honour are refused here by name, before anything is decoded or computed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from services.errors import AllmError, InvalidRequest, Unsupported
from services.image.engine.messages import Parameters, PipelineReady, Sizes
from services.models.desired import ImageDefaults
from services.pictures.messages import FileKind, Fit

Task = Literal["generate", "edit", "vary"]
Quality = Literal["auto", "low", "medium", "high", "xhigh", "max"]
# Multiples of the model's default steps; the result is clamped to the model's limits.
SHARES: Mapping[Quality, float] = {"low": 0.5, "auto": 1.0, "medium": 1.0, "high": 1.5, "xhigh": 2.0, "max": 3.0}
RANDOM_SEEDS = 2**32
_NO_DEFAULTS = ImageDefaults()


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The output file format."""

    kind: FileKind = "png"
    quality: int = 100  # 0 to 100, of jpeg and webp


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """A request; None and "" leave a value to the model's default."""

    model: str  # id or alias
    task: Task = "generate"
    prompt: str = ""
    negative_prompt: str = ""
    size: tuple[int, int] | None = None  # width, height
    count: int = 1
    seed: int | None = None  # of the first picture
    steps: int | None = None
    quality: Quality = "auto"  # a multiple of the model's default steps, used if `steps` is None
    guidance: float | None = None
    scheduler: str = ""
    strength: float | None = None
    image: bytes = field(default=b"", repr=False)  # a file; unless the task is `generate`
    mask: bytes = field(default=b"", repr=False)  # a file; empty: the transparent areas of the edited image
    output: OutputFormat = field(default_factory=OutputFormat)
    partials: int = 0  # previews of each picture, 0 to 3
    progress: bool = False


class ResolvedRequest:
    """A request that was checked against its model.

    Raises:
        InvalidRequest: a value is outside the model's limits; `param` is a field of ImageRequest.
        Unsupported: the model cannot do this.
    """

    def __init__(
        self, request: ImageRequest, model_id: str, ready: PipelineReady, defaults: ImageDefaults = _NO_DEFAULTS
    ) -> None:
        """`defaults` come from the model's registration."""
        self._defaults = defaults
        self._request = request
        self._model_id = model_id
        self._ready = ready
        if request.size:
            self._check_size(*request.size)
        self.seed = secrets.randbelow(RANDOM_SEEDS) if request.seed is None else request.seed
        self._steps = self._chosen_steps()
        self._guidance = self._chosen_guidance()
        self._scheduler = self._chosen_scheduler()
        self._check_task()
        self._check_negative()

    def fit(self) -> Fit:
        """Returns the size constraints for an input image."""
        sizes = self._ready.sizes
        width, height = self._request.size or (sizes.width, sizes.height)
        return Fit(
            width=width,
            height=height,
            exact=self._request.size is not None,
            multiple_of=sizes.multiple_of,
            min_side=sizes.min_side,
            max_side=sizes.max_side,
            max_pixels=sizes.max_pixels,
        )

    def parameters(self) -> Parameters:
        """Returns the parameters without an input image."""
        sizes = self._ready.sizes
        width, height = self._request.size or (sizes.width, sizes.height)
        return self._parameters(width, height, None)

    def parameters_over(self, width: int, height: int, *, masked: bool) -> Parameters:
        """Returns the parameters for changing an image of this (fitted) size."""
        self._check_size(width, height)
        ready, wanted = self._ready, self._request.strength
        if masked and "inpainting" not in ready.modes:
            param = "mask" if self._request.mask else "image"
            raise Unsupported(f"The model `{self._model_id}` does not support masks.", param=param)
        own = ready.mask_strength if masked else ready.image_strength
        strength = own if wanted is None else wanted
        if not 0 < strength <= 1:
            raise InvalidRequest(f"'strength' must be above 0 and at most 1, not {strength:g}.", param="strength")
        if int(self._steps * strength) < 1:
            message = f"'strength' {strength:g} of {self._steps} steps is less than one step."
            raise InvalidRequest(message, param="strength")
        return self._parameters(width, height, strength)

    def _parameters(self, width: int, height: int, strength: float | None) -> Parameters:
        return Parameters(
            width=width,
            height=height,
            steps=self._steps,
            guidance=self._guidance,
            scheduler=self._scheduler,
            strength=strength,
        )

    def _check_size(self, width: int, height: int) -> None:
        sizes = self._ready.sizes
        sides = (width, height)
        if (
            all(sizes.min_side <= side <= sizes.max_side and side % sizes.multiple_of == 0 for side in sides)
            and width * height <= sizes.max_pixels
        ):
            return
        message = f"The model `{self._model_id}` does not make images of {width}x{height}: {limits_of(sizes)}."
        raise InvalidRequest(message, param="size")

    def _chosen_steps(self) -> int:
        ready, wanted = self._ready, self._request.steps
        if wanted is None:
            own = self._defaults.steps or ready.default_steps
            share = round(own * SHARES[self._request.quality])
            return min(max(1, share), ready.max_steps)
        if not 1 <= wanted <= ready.max_steps:
            raise InvalidRequest(f"'steps' must be from 1 to {ready.max_steps}, not {wanted}.", param="steps")
        return wanted

    def _chosen_guidance(self) -> float:
        allowed, wanted = self._ready.guidance, self._request.guidance
        if wanted is None:
            own = allowed.default if self._defaults.guidance is None else self._defaults.guidance
            return min(max(own, allowed.minimum), allowed.maximum)
        if allowed.minimum <= wanted <= allowed.maximum:
            return wanted
        if allowed.minimum == allowed.maximum:
            problem: AllmError = Unsupported(
                f"The guidance of the model `{self._model_id}` is always {allowed.default:g}.", param="guidance"
            )
        else:
            limits = f"from {allowed.minimum:g} to {allowed.maximum:g}"
            problem = InvalidRequest(f"'guidance' must be {limits}, not {wanted:g}.", param="guidance")
        raise problem

    def _chosen_scheduler(self) -> str:
        ready, wanted = self._ready, self._request.scheduler
        if wanted and wanted not in ready.schedulers:
            known = ", ".join(ready.schedulers)
            message = f"'scheduler' must be one of {known}, not {wanted[:40]!r}."
            raise InvalidRequest(message, param="scheduler")
        return wanted or ready.default_scheduler

    def _check_task(self) -> None:
        """Checks the mode. Masks are checked later, in `parameters_over`, once the image has been read."""
        modes: Sequence[str] = self._ready.modes
        task = self._request.task
        if task == "generate" and "text_to_image" not in modes:
            raise Unsupported(f"The model `{self._model_id}` can only edit images.", param="model")
        if task != "generate" and "image_to_image" not in modes and "inpainting" not in modes:
            raise Unsupported(f"The model `{self._model_id}` cannot edit images.", param="image")

    def _check_negative(self) -> None:
        if not self._request.negative_prompt:
            return
        if not self._ready.negative:
            message = f"The model `{self._model_id}` does not support negative prompts."
            raise Unsupported(message, param="negative_prompt")
        if self._guidance <= 1:
            message = (
                f"'negative_prompt' has no effect with a guidance of {self._guidance:g}: guidance must be above 1."
            )
            raise InvalidRequest(message, param="negative_prompt")


def limits_of(sizes: Sizes) -> str:
    """Describes a model's size limits in words."""
    sides = f"width and height are {sizes.min_side} to {sizes.max_side}"
    steps = f", multiples of {sizes.multiple_of}" if sizes.multiple_of > 1 else ""
    return f"{sides}{steps}, and together at most {sizes.max_pixels} pixels"
