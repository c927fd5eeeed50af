"""Stage 2: the embeddings that SmolLM2 understands best, for each word of a description. It needs no pictures.

They start as the words' own embeddings, with which the untrained model answers some questions. The next stage trains
the projector to make them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from training.shapes_sd.training import Plan, step_rng, train
from training.shapes_vlm.dialogue import OWN, SYSTEMS, Writer, batched
from training.shapes_vlm.language import Language
from training.shapes_vlm.perceiving import SLOTS, description
from training.shapes_vlm.scene import Seen, random_picture

PLAN = Plan(name="wording", seed=43, steps=300, rate=1e-2, falls_from=0.5, decay=0.9, warmup=10)
BATCH = 4  # pictures


class Wording(nn.Module):
    """The embeddings of each slot's words."""

    def __init__(self, language: Language) -> None:
        super().__init__()
        self.tables = nn.ParameterList(language.embeddings([f" {word}" for word in slot]) for slot in SLOTS)

    def forward(self, contents: list[Seen]) -> Tensor:
        """Returns the embeddings [n, TOKENS, hidden] of descriptions."""
        named = [description(content) for content in contents]
        slots = [table[[SLOTS[slot].index(words[slot]) for words in named]] for slot, table in enumerate(self.tables)]
        return torch.stack(slots, dim=1)


class Teacher:
    """Makes questions about pictures, and SmolLM2's loss of the answers."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._writer = Writer(language.tokenizer)
        starts = [self._writer.start(system) for system in SYSTEMS]
        self._openings = [(len(start), language.opening(start)) for start in starts]

    def loss(self, pictures: Tensor, contents: list[Seen], plan: Plan, step: int) -> Tensor:
        """Returns the loss of random questions about pictures, given as embeddings [n, TOKENS, hidden]."""
        rng = step_rng(plan, 1_000_000 + step)
        own = rng.random() < OWN
        start, opening = self._openings[0 if own else rng.integers(1, len(self._openings))]
        rows = [self._writer.row(index, contents, rng, start) for index in range(len(contents))]
        return self._language.loss(batched(rows, start), pictures, opening)


def train_wording(state: Path, language: Language) -> Path:
    """Trains the embeddings, resuming if possible; returns their checkpoint."""
    wording, teacher = Wording(language), Teacher(language)

    def loss_of(step: int) -> Tensor:
        rng = step_rng(PLAN, step)
        contents = [random_picture(rng)[0] for _ in range(BATCH)]
        return teacher.loss(wording(contents), contents, PLAN, step)

    return train(PLAN, wording, loss_of, state)
