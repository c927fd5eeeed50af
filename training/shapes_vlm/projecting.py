"""Stage 3: the projector maps what the tower sees to the embeddings of stage 2."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from training.shapes_sd.checkpoint import averaged
from training.shapes_sd.training import Plan, step_rng, train
from training.shapes_vlm.architecture import Eyes
from training.shapes_vlm.drawn import drawn
from training.shapes_vlm.language import Language
from training.shapes_vlm.perceiving import SLOTS, Perception, batch, description
from training.shapes_vlm.scene import Seen
from training.shapes_vlm.wording import Wording

PLAN = Plan(name="projection", seed=47, steps=1_500, rate=2e-3, falls_from=0.3, decay=0.98)
PICTURES = 6_400  # seen by the tower once
BATCH = 64
SHARPNESS = 1.0  # how far a squared distance counts as a logit
ANCHOR = 0.1  # weight of the distance itself


def train_projection(state: Path, language: Language) -> Path:
    """Trains the projector, resuming if possible; returns its checkpoint."""
    torch.manual_seed(PLAN.seed)
    perception = averaged(state / "perception.safetensors", Perception(language.config))
    targets = Targets(averaged(state / "wording.safetensors", Wording(language)))
    seen, contents = _looked(perception.eyes, state)
    projector = Eyes(language.config).multi_modal_projector

    def loss_of(step: int) -> Tensor:
        chosen = step_rng(PLAN, step).integers(PICTURES, size=BATCH)
        return targets.loss(projector(seen[chosen]), [contents[index] for index in chosen])

    return train(PLAN, projector, loss_of, state)


@torch.no_grad()
def _looked(eyes: Eyes, state: Path) -> tuple[Tensor, list[Seen]]:
    """Returns the tower's output [PICTURES, TOKENS, WIDTH] for pictures, and their contents."""
    kept, seen, contents = drawn(state), [], []
    for step in range(PICTURES // BATCH):
        pictures, some = batch(kept, step_rng(PLAN, 1_000_000 + step), BATCH)
        with torch.autocast("cpu", torch.bfloat16):
            seen.append(eyes.look(pictures).float())
        contents += some
    return torch.cat(seen), contents


def eyes_of(state: Path, language: Language) -> Eyes:
    """Returns the tower of stage 1 with the projector of stage 3. Raises FileNotFoundError."""
    eyes = averaged(state / "perception.safetensors", Perception(language.config)).eyes
    averaged(state / "projection.safetensors", eyes.multi_modal_projector)
    return eyes


class Targets:
    """The embeddings that a picture's tokens should become."""

    def __init__(self, wording: Wording) -> None:
        self._tables = [table.detach() for table in wording.tables]

    def loss(self, made: Tensor, contents: list[Seen]) -> Tensor:
        """Returns the loss of embeddings [n, TOKENS, hidden]: cross entropy among a slot's words, and the distance."""
        total, named = made.new_zeros(()), [description(content) for content in contents]
        for slot, table in enumerate(self._tables):
            wanted = torch.tensor([SLOTS[slot].index(words[slot]) for words in named])
            distances = (made[:, slot, None] - table).square().sum(-1)
            total = total + functional.cross_entropy(-SHARPNESS * distances, wanted)
            total = total + ANCHOR * distances.gather(1, wanted[:, None]).mean()
        return total / len(SLOTS)
