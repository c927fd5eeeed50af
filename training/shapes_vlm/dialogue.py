"""Conversations about pictures as one row of tokens per picture, with SmolLM2's chat template.

The questions about a picture are branches behind the same picture: a branch sees the trunk and itself, and its
positions follow the trunk's. So a picture's tokens are computed once for all of its questions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy
import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.shapes_vlm.architecture import TOKENS
from training.shapes_vlm.questions import exchange
from training.shapes_vlm.scene import Seen

SYSTEMS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",  # the template's own
    "You are a helpful assistant.",
    "Answer questions about pictures.",
)
OWN = 0.6  # share of batches with the first one
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"
BETWEEN = ("\n", "", " ")  # texts between a picture and its question
BRANCHES = 6  # at most
LENGTH = 120  # tokens of a row after which no branch begins
PICTURE_LAST = 0.35  # share of pictures whose questions precede it
FOLLOWED = 0.15  # share of questions with a second one after the answer
TWO = 0.1  # share of pictures that another one precedes in the conversation
TRUNK = -1  # of a token: it belongs to all branches
IGNORED = -100  # label of a token that is not learned


@dataclass
class Row:
    """The tokens of one picture's conversations; negative ones stand for token -1 - n of all pictures of the batch."""

    tokens: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)  # the next token, where it is an answer's
    branches: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def add(self, tokens: list[int], branch: int, position: int, *, learned: bool = False) -> int:
        """Adds tokens; returns the next position. `learned` tokens are the labels of those before them."""
        for token in tokens:
            if learned:
                self.labels[-1] = token
            self.tokens.append(token)
            self.labels.append(IGNORED)
            self.branches.append(branch)
            self.positions.append(position)
            position += 1
        return position


@dataclass(frozen=True)
class Batch:
    """Rows of equal length as tensors [rows, length]; `visible` is [rows, 1, length, start + length], True or False."""

    tokens: Tensor
    labels: Tensor
    positions: Tensor
    visible: Tensor


class Writer:
    """Writes conversations in the chat template's form."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def start(self, system: str) -> list[int]:
        """Returns the tokens before a conversation's first message."""
        return self.encode(f"<|im_start|>system\n{system}<|im_end|>\n")

    def encode(self, text: str) -> list[int]:
        """Tokenizes a text, with special tokens."""
        return self._tokenizer.encode(text).ids

    def row(self, index: int, contents: list[Seen], rng: numpy.random.Generator, start: int) -> Row:
        """Writes conversations about picture `index` of the batch, behind `start` tokens."""
        row, at = Row(), start
        if rng.random() < TWO:
            other = int(rng.integers(len(contents)))
            at = self._turn(row, other, contents[other], rng, TRUNK, at, last=rng.random() < PICTURE_LAST)
            at = row.add(self.encode("\n"), TRUNK, at)
        if rng.random() < PICTURE_LAST:
            shared = index
        else:
            at, shared = row.add([*self.encode(USER), *picture(index)], TRUNK, at), None
        for branch in range(BRANCHES):
            if len(row.tokens) < LENGTH:
                self._branch(row, shared, contents[index], rng, branch, at, last=True)
        return row

    def _branch(
        self, row: Row, index: int | None, seen: Seen, rng: numpy.random.Generator, branch: int, at: int, *, last: bool
    ) -> None:
        at = self._turn(row, index, seen, rng, branch, at, last=last)
        if rng.random() < FOLLOWED:
            made = exchange(seen, rng)
            at = row.add(self.encode(f"\n{USER}{made.question}{ASSISTANT}"), branch, at)
            row.add(self.encode(f"{made.answer}{END}"), branch, at, learned=True)

    def _turn(
        self, row: Row, index: int | None, seen: Seen, rng: numpy.random.Generator, branch: int, at: int, *, last: bool
    ) -> int:
        """Adds a question and its answer, with picture `index` after or before it, or without (None)."""
        made, between = exchange(seen, rng), BETWEEN[rng.integers(len(BETWEEN))]
        if index is None:
            at = row.add(self.encode(f"{between}{made.question}{ASSISTANT}"), branch, at)
        elif last:
            at = row.add(self.encode(f"{USER}{made.question}{between}"), branch, at)
            at = row.add(picture(index), branch, at)
            at = row.add(self.encode(ASSISTANT), branch, at)
        else:
            at = row.add([*self.encode(USER), *picture(index)], branch, at)
            at = row.add(self.encode(f"{between}{made.question}{ASSISTANT}"), branch, at)
        return row.add(self.encode(f"{made.answer}{END}"), branch, at, learned=True)


def picture(index: int) -> list[int]:
    """Returns the placeholders of the tokens of picture `index` of the batch."""
    return [-1 - token for token in range(index * TOKENS, (index + 1) * TOKENS)]


def batched(rows: list[Row], start: int) -> Batch:
    """Pads the rows; each token sees the `start` tokens before the row and its own branch's up to itself."""
    length = max(len(row.tokens) for row in rows)

    def padded(name: str, filler: int) -> Tensor:
        values = [getattr(row, name) for row in rows]
        return torch.tensor([value + [filler] * (length - len(value)) for value in values])

    branches = padded("branches", BRANCHES)
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    own = (branches[:, None, :] == TRUNK) | (branches[:, None, :] == branches[:, :, None])
    visible = torch.cat([torch.ones(len(rows), length, start, dtype=torch.bool), own & earlier], dim=-1)
    return Batch(padded("tokens", 0), padded("labels", IGNORED), padded("positions", 0), visible[:, None])
