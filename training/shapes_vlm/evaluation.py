"""Evaluation of the finished model by transformers: held-out drawings and pictures by shapes-sd, varied questions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from training.shapes_sd.scene import COLOURS, SHAPES
from training.shapes_vlm.architecture import IMAGE_TOKEN_ID, TOKENS
from training.shapes_vlm.dialogue import ASSISTANT, SYSTEMS, USER
from training.shapes_vlm.looks import pixels
from training.shapes_vlm.questions import KINDS, Exchange
from training.shapes_vlm.scene import Seen, random_picture

DRAWINGS = 100
SEED = 2_027
LONGEST = 40  # tokens of an answer
_BATCH = 25


@dataclass(frozen=True)
class Outcome:
    """One question about a picture, the expected answer in `exchange`, and the model's."""

    kind: str
    seen: Seen
    exchange: Exchange
    answer: str

    @property
    def right(self) -> bool:
        """Returns True if the answer names the same colours and shapes, in the same order, as the expected one."""
        return _named(self.answer) == _named(self.exchange.answer)

    @property
    def same(self) -> bool:
        """Returns True if the answer is the expected one, word for word."""
        return self.answer == self.exchange.answer


class Model:
    """The model in a folder of safetensors."""

    def __init__(self, folder: Path) -> None:
        """Loads the folder. Raises OSError."""
        self._model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    @torch.no_grad()
    def answers(self, pictures: Tensor, questions: list[str], *, picture_last: bool) -> list[str]:
        """Returns the likeliest answers to a question about each of the pictures float [n, 3, 64, 64]."""
        rows = [self._prompt(question, picture_last) for question in questions]
        longest = max(map(len, rows))
        tokens = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        made = self._model.generate(
            input_ids=tokens,
            attention_mask=torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
            pixel_values=pictures.to(torch.bfloat16),
            max_new_tokens=LONGEST,
            do_sample=False,
        )
        return [self._tokenizer.decode(row[longest:].tolist()) for row in made]

    def _prompt(self, question: str, picture_last: bool) -> list[int]:
        picture = [IMAGE_TOKEN_ID] * TOKENS
        start = self._encode(f"<|im_start|>system\n{SYSTEMS[0]}<|im_end|>\n{USER}")
        if picture_last:
            return [*start, *self._encode(question), *picture, *self._encode(ASSISTANT)]
        return [*start, *picture, *self._encode(question + ASSISTANT)]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids


def drawings() -> list[tuple[Seen, numpy.ndarray]]:
    """Returns held-out drawings of one shape, always the same."""
    rng = numpy.random.default_rng(SEED)
    chosen: list[tuple[Seen, numpy.ndarray]] = []
    while len(chosen) < DRAWINGS:
        seen, picture = random_picture(rng)
        if len(seen.things) == 1:
            chosen.append((seen, picture))
    return chosen


def evaluate(model: Model, pictures: list[tuple[Seen, numpy.ndarray]], kind: str) -> list[Outcome]:
    """Asks a question of that kind (one of KINDS) about each picture; half of the batches end with the picture."""
    rng = numpy.random.default_rng(SEED + 1)
    outcomes = []
    for start in range(0, len(pictures), _BATCH):
        some = pictures[start : start + _BATCH]
        exchanges = [KINDS[kind](seen, rng) for seen, _ in some]
        answers = model.answers(
            pixels(numpy.stack([picture for _, picture in some])),
            [exchange.question for exchange in exchanges],
            picture_last=start // _BATCH % 2 == 1,
        )
        outcomes += [Outcome(kind, *each) for each in zip((seen for seen, _ in some), exchanges, answers, strict=True)]
    return outcomes


def summary(outcomes: list[Outcome]) -> str:
    """Formats the number of right answers of one kind of questions."""
    right, same = sum(each.right for each in outcomes), sum(each.same for each in outcomes)
    return f"{outcomes[0].kind}: colours and shapes right {right} of {len(outcomes)}, the expected answer {same}"


def _named(answer: str) -> list[str]:
    words = answer.lower().replace(".", " ").replace(",", " ").replace("grey", "gray").split()
    return [word for word in words if word in COLOURS or word in SHAPES]
