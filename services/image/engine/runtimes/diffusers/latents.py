"""Previews of a running batch: decodes latents early, from the scheduler's estimate of the final latents."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


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
