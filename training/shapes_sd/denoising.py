"""Stage 3: the denoiser, on the latents of stage 1 and the states of stage 2's text encoder. Both stay frozen."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from diffusers.models.attention_processor import AttnProcessor
from torch import Tensor
from torch.nn import functional
from transformers import CLIPTextModel

from training.shapes_sd.architecture import denoiser, scheduler
from training.shapes_sd.caption import Wording, worded_caption
from training.shapes_sd.checkpoint import averaged
from training.shapes_sd.latents import latents
from training.shapes_sd.reading import Reader, tokens_of
from training.shapes_sd.scene import Scene, forget
from training.shapes_sd.training import Plan, step_rng, train
from training.shapes_sd.vocabulary import tokenizer

PLAN = Plan(name="denoiser", seed=14, steps=4_200, rate=7e-4, falls_from=0.55, decay=0.997, warmup=100)
BATCH = 16
SILENT = 0.1  # chance of an empty caption, for guidance
UNSAID = 0.03  # chance of leaving out each part of the other captions
WORDING = Wording()


def train_denoiser(state: Path) -> Path:
    """Trains the denoiser, resuming if possible; returns its checkpoint. Needs the other checkpoints in `state`."""
    data, words, reader = latents(state), tokenizer(), finished_text_encoder(state)
    torch.manual_seed(PLAN.seed)
    network = denoiser().to(memory_format=torch.channels_last)
    network.set_attn_processor(AttnProcessor())  # equivalent to the fused processor, whose gradient is slow in bfloat16
    kept = scheduler().alphas_cumprod

    def loss_of(step: int) -> Tensor:
        rng = step_rng(PLAN, step)
        chosen = rng.integers(len(data.scenes), size=BATCH)
        tokens = tokens_of(words, [_caption(data.scenes[index], rng) for index in chosen])
        # Stratified over all times, which reduces the noise of the loss.
        times = torch.from_numpy((numpy.arange(BATCH) + rng.random(BATCH)) / BATCH * len(kept)).long()
        clean = data.values[torch.from_numpy(chosen)]
        noise = torch.from_numpy(rng.standard_normal(clean.shape, dtype=numpy.float32))
        signal, noisy = kept[times].sqrt()[:, None, None, None], (1 - kept[times]).sqrt()[:, None, None, None]
        mixed = (signal * clean + noisy * noise).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                states = reader(tokens).last_hidden_state
            made = network(mixed, times, states).sample
        return functional.mse_loss(made.float(), signal * noise - noisy * clean)

    return train(PLAN, network, loss_of, state)


def finished_text_encoder(state: Path) -> CLIPTextModel:
    """Returns the trained text encoder."""
    reader = averaged(state / "text_encoder.safetensors", Reader(tokenizer()))
    return reader.encoder


def _caption(scene: Scene, rng: numpy.random.Generator) -> str:
    return "" if rng.random() < SILENT else worded_caption(forget(scene, rng, UNSAID), rng, WORDING)
