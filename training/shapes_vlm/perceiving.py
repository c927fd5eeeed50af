"""Stage 1: the tower. Each of a picture's 16 tokens tells one word of a description of the picture.

The words are the background's colour, then size, colour, shape, row and column of up to three shapes. This needs no
language model, and leaves little to learn for the next stages.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlavaConfig

from training.shapes_sd.scene import COLOURS, SHAPES
from training.shapes_sd.training import Plan, step_rng, train
from training.shapes_vlm.architecture import TOKENS, WIDTH, Eyes
from training.shapes_vlm.drawn import Drawn, drawn
from training.shapes_vlm.language import Language
from training.shapes_vlm.looks import pixels, worn
from training.shapes_vlm.scene import SIZES, Seen, random_picture

PLAN = Plan(name="perception", seed=41, steps=2_400, rate=1e-3, falls_from=0.5, decay=0.995)
BATCH = 64
KEPT = 20  # pictures of a batch that shapes-sd or its autoencoder made
GENERATED = 5  # of these, by shapes-sd itself
SHAPE_WEIGHT = 5.0  # shapes are harder to tell than all else
NOTHING = "none"  # the words of a shape that does not exist
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
PARTS: tuple[tuple[str, ...], ...] = (tuple(SIZES), tuple(COLOURS), SHAPES, ROWS, COLUMNS)
SLOTS: tuple[tuple[str, ...], ...] = (tuple(COLOURS), *(((NOTHING, *part)) for part in PARTS * 3))


def train_perception(state: Path, language: Language) -> Path:
    """Trains the tower, resuming if possible; returns their checkpoint."""
    torch.manual_seed(PLAN.seed)
    network, kept = Perception(language.config), drawn(state)

    def loss_of(step: int) -> Tensor:
        pictures, contents = batch(kept, step_rng(PLAN, step), BATCH)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = network.eyes.look(pictures)
        return network.loss(hidden.float(), contents)

    return train(PLAN, network, loss_of, state)


class Perception(nn.Module):
    """The eyes, of which the projector is not trained yet, and a classifier for each token.

    The loss of embeddings, far from what a new projector makes, would first teach the tower to ignore its picture.
    """

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        self.eyes = Eyes(config)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, len(slot)) for slot in SLOTS)

    def loss(self, hidden: Tensor, contents: list[Seen]) -> Tensor:
        """Returns the classifiers' cross entropy; hidden: [n, TOKENS, WIDTH]."""
        normal, named = functional.layer_norm(hidden, (WIDTH,)), [description(content) for content in contents]
        losses = [
            functional.cross_entropy(
                head(normal[:, slot]), torch.tensor([SLOTS[slot].index(words[slot]) for words in named])
            )
            for slot, head in enumerate(self.heads)
        ]
        weights = normal.new_tensor([SHAPE_WEIGHT if "circle" in slot else 1.0 for slot in SLOTS])
        return (torch.stack(losses) * weights).sum() / weights.sum()


def batch(kept: Drawn, rng: numpy.random.Generator, size: int) -> tuple[Tensor, list[Seen]]:
    """Returns pictures float [size, 3, 64, 64] and their contents: a third are kept ones, the others drawn anew."""
    chosen = [_kept(kept, rng, generated=index < size * GENERATED // BATCH) for index in range(size * KEPT // BATCH)]
    chosen += [random_picture(rng) for _ in range(size - len(chosen))]
    return pixels(numpy.stack([worn(picture, rng) for _, picture in chosen])), [content for content, _ in chosen]


def _kept(kept: Drawn, rng: numpy.random.Generator, *, generated: bool) -> tuple[Seen, numpy.ndarray]:
    index = rng.integers(kept.generated) if generated else rng.integers(kept.generated, len(kept.contents))
    return kept.contents[index], kept.pictures[index]


def description(seen: Seen) -> list[str]:
    """Returns the 16 words for a picture, one for each of SLOTS."""
    words = [seen.background]
    for thing in seen.things:
        row = next((row for row in ROWS if row in thing.position), "middle")
        column = next((column for column in COLUMNS if column in thing.position), "center")
        words += [thing.size, thing.colour, thing.shape, row, column]
    return words + [NOTHING] * (TOKENS - len(words))
