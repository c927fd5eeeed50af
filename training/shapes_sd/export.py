"""The pipeline as a folder that diffusers loads: half precision, safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline

from training.shapes_sd.architecture import denoiser, scheduler
from training.shapes_sd.checkpoint import averaged
from training.shapes_sd.denoising import finished_text_encoder
from training.shapes_sd.latents import finished_autoencoder
from training.shapes_sd.vocabulary import tokenizer

MOST_BYTES = 20_000_000


def pipeline(state: Path) -> StableDiffusionPipeline:
    """Builds the pipeline from the averaged weights of all checkpoints in `state`. Raises FileNotFoundError."""
    return StableDiffusionPipeline(
        vae=finished_autoencoder(state),
        text_encoder=finished_text_encoder(state),
        tokenizer=tokenizer(),
        unet=averaged(state / "denoiser.safetensors", denoiser()),
        scheduler=scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def export(state: Path, folder: Path) -> None:
    """Writes the pipeline to a folder and replaces existing files. Raises ValueError if it is too large to ship."""
    pipeline(state).to(dtype=torch.float16).save_pretrained(folder, safe_serialization=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        raise ValueError(f"{folder} has {size} bytes, more than {MOST_BYTES}")
