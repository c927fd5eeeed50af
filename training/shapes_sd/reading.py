"""Stage 2: the text encoder, which learns to extract the parts of a scene from a caption.

As in Stable Diffusion, it is trained before the denoiser and then frozen. At the end token and at every padding token
after it, it predicts the colour, shape, background, size and position of the text, or their absence: the states
that the denoiser attends to then contain all of them explicitly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextModel, CLIPTokenizer

from training.shapes_sd.architecture import MAX_TOKENS, TEXT_WIDTH, text_encoder
from training.shapes_sd.caption import Wording, worded_caption
from training.shapes_sd.scene import COLOURS, POSITIONS, SHAPES, SIZES, Scene, forget, random_scene
from training.shapes_sd.training import Plan, step_rng, train
from training.shapes_sd.vocabulary import tokenizer

PLAN = Plan(name="text_encoder", seed=12, steps=1_500, rate=1.5e-3, falls_from=0.4, decay=0.99)
BATCH = 32
WORDING = Wording(prefix=0.35, order=0.4, synonym=0.5, noise=0.12)
PARTS: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "background": tuple(COLOURS),
    "size": SIZES,
    "position": tuple(POSITIONS),
}


class Reader(nn.Module):
    """The text encoder with one linear classifier per part of a scene; training alone uses the classifiers."""

    def __init__(self, words: CLIPTokenizer) -> None:
        super().__init__()
        self.encoder: CLIPTextModel = text_encoder(words)
        self.guesses = nn.ModuleDict({name: nn.Linear(TEXT_WIDTH, len(names) + 1) for name, names in PARTS.items()})

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        """Maps tokens [n, 48] to scores per part and word: [n, 48, words + 1], where 0 is "not said"."""
        states = self.encoder(tokens).last_hidden_state
        return {name: guess(states) for name, guess in self.guesses.items()}


def tokens_of(words: CLIPTokenizer, captions: Sequence[str]) -> Tensor:
    """Tokenizes captions as the pipeline does: [n, 48]."""
    reported = words(list(captions), padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt")
    return reported.input_ids


def train_text_encoder(state: Path) -> Path:
    """Trains the text encoder, resuming if possible; returns the checkpoint, which names it `encoder`."""
    torch.manual_seed(PLAN.seed)
    words = tokenizer()
    reader = Reader(words)

    def loss_of(step: int) -> Tensor:
        rng = step_rng(PLAN, step)
        scenes = [_scene(rng) for _ in range(BATCH)]
        tokens = tokens_of(words, [worded_caption(scene, rng, WORDING) for scene in scenes])
        return _loss(reader(tokens), scenes, tokens == words.eos_token_id)

    return train(PLAN, reader, loss_of, state)


def said(scenes: Sequence[Scene], name: str) -> Tensor:
    """Returns the class of each scene for a part: [n], 0 for unspecified."""
    names = PARTS[name]
    return torch.tensor([names.index(word) + 1 if (word := getattr(scene, name)) else 0 for scene in scenes])


def _loss(guesses: dict[str, Tensor], scenes: Sequence[Scene], ended: Tensor) -> Tensor:
    total = torch.zeros(())
    weights = ended / ended.sum(dim=1, keepdim=True) / len(scenes)
    for name, scores in guesses.items():
        wanted = said(scenes, name)[:, None].expand(ended.shape)
        total = total + (functional.cross_entropy(scores.transpose(1, 2), wanted, reduction="none") * weights).sum()
    return total


def _scene(rng: numpy.random.Generator) -> Scene:
    scene = random_scene(rng)
    kind = rng.random()
    return scene if kind < 0.5 else forget(scene, rng, 0.25 if kind < 0.85 else 0.75)
