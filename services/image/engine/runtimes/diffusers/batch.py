"""One batch, from prompts to pixels, in the pipeline's own loop, with a callback after every step and early exit.

Previews decode latents early, from the scheduler's estimate of the final latents.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from services.image.engine.messages import Draft, Parameters
from services.image.engine.runtime import AfterStep

# Pipelines whose loops keep the state of a row only in these tensors, the scheduler and the list of generators: rows
# that are no longer wanted can leave the batch. Other pipelines compute such rows to the end and discard them.
_SHRINKABLE = {
    "StableDiffusionPipeline": ("latents", "prompt_embeds"),
    "StableDiffusionXLPipeline": ("latents", "prompt_embeds", "add_text_embeds", "add_time_ids"),
    "StableDiffusion3Pipeline": ("latents", "prompt_embeds", "pooled_prompt_embeds"),
}


class _Unwanted(Exception):
    """No image of the batch is wanted any more."""


class PipelineBatch:
    """Drafts that are computed together."""

    def __init__(self, pipeline: Any, parameters: Parameters, drafts: Sequence[Draft], after_step: AfterStep) -> None:
        """The pipeline's scheduler must be a new instance of the scheduler that `parameters` name."""
        self._pipeline = pipeline
        self._parameters = parameters
        self._mode = drafts[0].mode
        self._drafts = drafts
        self._after_step = after_step
        self._rows = list(range(len(drafts)))  # drafts that are still in the batch
        self._wanted = set(self._rows)
        # Always on the CPU: the same seed then gives the same noise on every device.
        self._generators = [torch.Generator().manual_seed(draft.seed) for draft in drafts]
        self._guess = Guess(pipeline.scheduler)

    def run(self) -> list[bytes | None]:
        """Runs the pipeline. Returns the pixels of each draft, None for those that are no longer wanted."""
        try:
            images = self._pipeline(**self._arguments()).images
        except _Unwanted:
            self._pipeline.maybe_free_model_hooks()
            return [None] * len(self._drafts)
        pixels = dict(zip(self._rows, pixels_of(images), strict=True))
        return [pixels[row] if row in self._wanted else None for row in range(len(self._drafts))]

    def _arguments(self) -> dict[str, Any]:
        parameters, drafts = self._parameters, self._drafts
        taken = inspect.signature(self._pipeline.__call__).parameters
        arguments: dict[str, Any] = {
            "prompt": [draft.prompt for draft in drafts],
            "width": parameters.width,
            "height": parameters.height,
            "num_inference_steps": parameters.steps,
            "guidance_scale": parameters.guidance,
            "generator": self._generators,
            "output_type": "np",
            "callback_on_step_end": self._stepped,
            "callback_on_step_end_tensor_inputs": list(_SHRINKABLE.get(self._kind, ("latents",))),
        }
        if drafts[0].negative:
            arguments["negative_prompt"] = [draft.negative for draft in drafts]
        size = (parameters.width, parameters.height)
        if self._mode != "text_to_image":
            arguments["strength"] = parameters.strength
            arguments["image"] = [Image.frombytes("RGB", size, draft.image or b"") for draft in drafts]
        if self._mode == "inpainting":
            arguments["mask_image"] = [Image.frombytes("L", size, draft.mask or b"") for draft in drafts]
        return {name: value for name, value in arguments.items() if name in taken}

    @property
    def _kind(self) -> str:
        """The class of the pipeline; empty if its guidance is a tensor with rows as well, so that it cannot shrink."""
        unet = getattr(self._pipeline, "unet", None)
        embedded = unet is not None and unet.config.get("time_cond_proj_dim") is not None
        return "" if embedded else type(self._pipeline).__name__

    def _stepped(self, pipeline: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        latents: Tensor = tensors["latents"]

        def preview(rows: Sequence[int]) -> list[bytes]:
            source = latents if self._guess.latest is None else self._guess.latest
            chosen = source[[self._rows.index(row) for row in rows]]
            images = decode(pipeline, chosen, self._parameters.width, self._parameters.height)
            return [self._masked(row, pixels) for row, pixels in zip(rows, images, strict=bool(images))]

        steps = pipeline.num_timesteps
        self._wanted = set(self._after_step(step + 1, steps, preview))
        if not self._wanted:
            raise _Unwanted
        if len(self._wanted) < len(self._rows) and self._kind in _SHRINKABLE and step + 1 < steps:
            self._shrink(tensors)
        return tensors

    def _masked(self, row: int, pixels: bytes) -> bytes:
        """Restores the kept area of the input image in a preview: there the guess shows the model's own picture."""
        if self._mode != "inpainting":
            return pixels
        draft, size = self._drafts[row], (self._parameters.width, self._parameters.height)
        generated, given = (Image.frombytes("RGB", size, each) for each in (pixels, draft.image or b""))
        return Image.composite(generated, given, Image.frombytes("L", size, draft.mask or b"")).tobytes()

    def _shrink(self, tensors: dict[str, Any]) -> None:
        """Drops the rows that are no longer wanted, in place."""
        before = len(self._rows)
        places = [place for place, row in enumerate(self._rows) if row in self._wanted]
        for name in _SHRINKABLE[self._kind]:
            tensors[name] = _kept(tensors[name], places, before)
        scheduler = self._pipeline.scheduler
        rank = tensors["latents"].ndim
        for name, value in vars(scheduler).items():
            if isinstance(value, list | tuple):
                kept = [_kept(each, places, before) if _has_rows(each, rank, before) else each for each in value]
                setattr(scheduler, name, type(value)(kept))
            elif _has_rows(value, rank, before):
                setattr(scheduler, name, _kept(value, places, before))
        self._guess.keep(places)
        self._generators[:] = [self._generators[place] for place in places]
        self._rows = [self._rows[place] for place in places]


def _has_rows(value: Any, rank: int, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim == rank and value.shape[0] == rows


def _kept(tensor: Tensor, places: Sequence[int], rows: int) -> Tensor:
    """Selects rows of a tensor that holds all rows once, or twice: without the prompt, then with it."""
    halves = tensor.chunk(tensor.shape[0] // rows)
    return torch.cat([half[list(places)] for half in halves])


def pixels_of(images: npt.NDArray[np.float32]) -> list[bytes]:
    """Converts images [n, height, width, 3] from 0 to 1 to RGB, rounded as diffusers does for files."""
    return [image.tobytes() for image in (images * 255).round().astype("uint8")]


class Guess:
    """Wraps a scheduler's `step`. `latest` is its estimate of the final latents, None if it gives none."""

    def __init__(self, scheduler: Any) -> None:
        self.latest: Tensor | None = None
        self._scheduler = scheduler
        step = scheduler.step

        @functools.wraps(step)  # pipelines inspect its signature
        def listening(model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
            whole = kwargs.pop("return_dict", True)
            result = step(model_output, timestep, sample, *args, return_dict=True, **kwargs)
            self.latest = self._guess(result, model_output, sample)
            return result if whole else (result.prev_sample,)

        scheduler.step = listening

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps only these rows; the others have left the batch."""
        if self.latest is not None:
            self.latest = self.latest[list(rows)]

    def _guess(self, result: Any, model_output: Tensor, sample: Tensor) -> Tensor | None:
        scheduler = self._scheduler
        found = getattr(result, "pred_original_sample", None)
        if found is None and type(scheduler).__name__ == "FlowMatchEulerDiscreteScheduler":
            sigma = scheduler.sigmas[scheduler.step_index - 1]
            found = sample - sigma.to(sample.device, sample.dtype) * model_output
        if found is None and getattr(scheduler.config, "algorithm_type", "") == "dpmsolver++":
            found = scheduler.model_outputs[-1]
        if found is None and getattr(scheduler.config, "predict_x0", False):
            found = scheduler.model_outputs[-1]
        return found if isinstance(found, Tensor) and found.shape == sample.shape else None


def decode(pipeline: Any, latents: Tensor, width: int, height: int) -> list[bytes]:
    """Decodes latents to RGB as the pipeline itself does at the end; empty if their kind is unknown."""
    vae = pipeline.vae
    if latents.ndim == 3 and hasattr(pipeline, "_unpack_latents"):
        latents = pipeline._unpack_latents(latents, height, width, pipeline.vae_scale_factor)
    if latents.ndim != 4 or not hasattr(pipeline, "image_processor"):
        return []
    config = vae.config
    latents = latents.to(vae.dtype)
    mean, deviation = config.get("latents_mean"), config.get("latents_std")
    if mean is not None and deviation is not None:
        latents = latents * _per_channel(deviation, latents) / config.scaling_factor + _per_channel(mean, latents)
    else:
        latents = latents / config.scaling_factor + (config.get("shift_factor") or 0.0)
    upcast = vae.dtype == torch.float16 and config.get("force_upcast", False)
    if upcast:  # this VAE overflows in half precision
        vae.to(dtype=torch.float32)
        latents = latents.float()
    try:
        images = vae.decode(latents, return_dict=False)[0]
    finally:
        if upcast:
            vae.to(dtype=torch.float16)
    return pixels_of(pipeline.image_processor.postprocess(images, output_type="np"))


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype).view(1, -1, 1, 1)
