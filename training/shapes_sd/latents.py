"""The denoiser's training data: pictures drawn once and kept as the autoencoder's latents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from diffusers import AutoencoderKL
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.shapes_sd.architecture import LATENT_CHANNELS, autoencoder
from training.shapes_sd.autoencoding import tensor
from training.shapes_sd.checkpoint import averaged
from training.shapes_sd.drawing import draw
from training.shapes_sd.scene import Scene, random_scene

PICTURES = 16_000
SEED = 13
LEAST = 0.5  # minimum deviation for scaling; the autoencoder does not use a channel with less
CERTAIN = -7.0  # logarithm of the latents' variance: the denoiser learns from means alone
MEASURED = 1_024  # number of pictures for the mean and the deviation
_CHUNK = 32  # pictures per encoder call
_TOLD = 2_000  # pictures between two lines of progress


@dataclass(frozen=True)
class Latents:
    """Scenes and their latents: float [pictures, 4, 16, 16], every channel with mean 0 and deviation 1."""

    scenes: list[Scene]
    values: Tensor


def scenes() -> list[Scene]:
    """Returns the scenes of the pictures, without held-out pairs."""
    return [random_scene(_rng(index)) for index in range(PICTURES)]


def latents(state: Path) -> Latents:
    """Loads the latents from the folder `state`; computes them if the file does not exist."""
    path = state / "latents.safetensors"
    if not path.exists():
        _encode(finished_autoencoder(state), path)
    with safe_open(path, framework="pt") as file:
        return Latents(scenes(), file.get_tensor("latents"))


@torch.no_grad()
def finished_autoencoder(state: Path) -> AutoencoderKL:
    """Returns the trained autoencoder, with latents normalised to mean 0 and deviation 1 per channel.

    Stable Diffusion has only one factor for all channels, so the 1 x 1 convolutions on both sides of the latents apply
    the normalisation, and the factor is 1.
    """
    network = averaged(state / "autoencoder.safetensors", autoencoder())
    means = torch.cat([_means(network, start) for start in range(0, MEASURED, _CHUNK)])
    middle, spread = means.mean(dim=(0, 2, 3)), means.std(dim=(0, 2, 3)).clamp(min=LEAST)
    into, out = network.quant_conv, network.post_quant_conv
    mean, variance = slice(LATENT_CHANNELS), slice(LATENT_CHANNELS, None)
    into.weight[mean] /= spread[:, None, None, None]
    into.bias[mean] = (into.bias[mean] - middle) / spread
    into.weight[variance] = 0
    into.bias[variance] = CERTAIN
    out.bias.add_((out.weight[:, :, 0, 0] * middle).sum(dim=1))
    out.weight.mul_(spread[:, None, None])
    network.register_to_config(scaling_factor=1.0)
    return network


def _means(network: AutoencoderKL, start: int) -> Tensor:
    pictures = []
    for index in range(start, start + _CHUNK):
        rng = _rng(index)
        pictures.append(draw(random_scene(rng), rng))
    return network.encode(tensor(pictures)).latent_dist.mean.contiguous()


@torch.no_grad()
def _encode(network: AutoencoderKL, path: Path) -> None:
    network.to(memory_format=torch.channels_last)
    chunks = []
    for start in range(0, PICTURES, _CHUNK):
        chunks.append(_means(network, start))
        if start % _TOLD < _CHUNK:
            print(f"latents: {start} of {PICTURES} pictures", flush=True)
    fresh = path.with_suffix(".partial")
    save_file({"latents": torch.cat(chunks)}, fresh)
    fresh.replace(path)


def _rng(index: int) -> numpy.random.Generator:
    return numpy.random.default_rng((SEED, index))
