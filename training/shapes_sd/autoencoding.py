"""Stage 1: the autoencoder, trained on pictures of scenes and on busy pictures."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional

from training.shapes_sd.architecture import LATENT_CHANNELS, autoencoder
from training.shapes_sd.averaging import start_averaging
from training.shapes_sd.drawing import SIDE, draw, draw_busy
from training.shapes_sd.scene import random_scene
from training.shapes_sd.training import Plan, step_rng, train

PLAN = Plan(name="autoencoder", seed=11, steps=1_800, rate=1.5e-3, falls_from=0.4, decay=0.99)
BATCH = 8
BUSY = 2  # busy pictures per batch
PATCH = 32  # side of the square patch cut from each picture, in pixels: any patch holds most of what there is to learn
WHOLE_FROM = 0.75  # fraction of the steps after which batches are half as many whole pictures
KL_WEIGHT = 1e-3
EDGE_WEIGHT = 0.5


def train_autoencoder(state: Path) -> Path:
    """Trains the autoencoder, resuming if possible; returns its checkpoint."""
    torch.manual_seed(PLAN.seed)
    network = autoencoder().to(memory_format=torch.channels_last)
    start_averaging(network)

    def loss_of(step: int) -> Tensor:
        rng = step_rng(PLAN, step)
        pictures = [draw_busy(rng) if index < BUSY else draw(random_scene(rng), rng) for index in range(BATCH)]
        if step < PLAN.steps * WHOLE_FROM:
            pictures = [_patch(picture, rng) for picture in pictures]
        else:
            pictures = pictures[BUSY // 2 :][: BATCH // 2]
        given = tensor(pictures)
        shape = (len(pictures), LATENT_CHANNELS, given.shape[2] // 4, given.shape[3] // 4)
        return _loss(network, given, torch.from_numpy(rng.standard_normal(shape, dtype=numpy.float32)))

    return train(PLAN, network, loss_of, state)


def tensor(pictures: list[numpy.ndarray]) -> Tensor:
    """Converts pictures uint8 [height, width, 3] to network input: float [n, 3, height, width] from -1 to 1."""
    stacked = torch.from_numpy(numpy.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return stacked.contiguous(memory_format=torch.channels_last)


def _patch(picture: numpy.ndarray, rng: numpy.random.Generator) -> numpy.ndarray:
    y, x = rng.integers(SIDE - PATCH + 1, size=2)
    return picture[y : y + PATCH, x : x + PATCH]


def _loss(network: AutoencoderKL, pictures: Tensor, noise: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        spread = network.encode(pictures).latent_dist
        made = network.decode(spread.mean + spread.std * noise).sample
    made = made.float()
    edges = sum(functional.l1_loss(made.diff(dim=way), pictures.diff(dim=way)) for way in (2, 3))
    kl = 0.5 * (spread.mean.float().square() + spread.var.float() - 1 - spread.logvar.float()).mean()
    return (
        functional.l1_loss(made, pictures) + functional.mse_loss(made, pictures) + EDGE_WEIGHT * edges + KL_WEIGHT * kl
    )
