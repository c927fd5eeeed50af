"""The check of pictures, with models that are right and wrong in known ways."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from allm.models.v1 import model_pb2
from allm.text.v1 import chat_pb2
from PIL import Image

from services.cli.models.connection import CallRefused
from services.cli.verify.check import CheckFailed
from services.cli.verify.pictures import COLOURS, PICTURE_CHECK
from services.cli.verify.subject import Request, Scored, Subject, SubjectAnswer

WORDS, TOKENS = 9, 16  # tokens of the question, and of a picture


class Model(Subject):
    """A model that names the colour in the middle of the last picture; `defect` says how it fails."""

    def __init__(self, defect: str = "", *, sees: bool = True, random: bool = False) -> None:
        unused: Any = None
        capabilities = ["chat", "vision"] if sees else ["chat"]
        super().__init__(
            model=model_pb2.Model(id="m", capabilities=capabilities), catalog=unused, chat=unused, text=unused
        )
        self.random, self.defect = random, defect

    def ask(self, request: Request) -> SubjectAnswer:
        pictures = [part.image for part in request.messages[0].content if part.HasField("image")]
        if pictures and "vision" not in self.model.capabilities and self.defect != "takes pictures":
            raise CallRefused("The model `m` takes no pictures")
        name = colour(pictures[-1]) if pictures and self.defect != "blind" else "white"
        if self.defect == "colours" and request.schema:
            name = {"red": "blue", "blue": "red"}.get(name, name)
        if self.defect == "data URL" and pictures and pictures[-1].url:
            name = "dark"
        answer = SubjectAnswer(text=json.dumps(name) if request.schema else name)
        answer.tokens = [Scored(name.encode(), -0.1, ((name.encode(), -0.1), (b"no", -9.0)))]
        answer.prompt_tokens = WORDS + TOKENS * (len(pictures) if self.defect != "uncounted" else 0)
        return answer

    def ask_together(self, requests: Sequence[Request]) -> list[SubjectAnswer]:
        answers = [self.ask(each) for each in requests]
        return answers[::-1] if self.defect == "mixed" else answers


def colour(picture: chat_pb2.ImagePart) -> str:
    data = picture.data or base64.b64decode(picture.url.partition(",")[2])
    opened = Image.open(io.BytesIO(data))
    return next(name for name, value in COLOURS.items() if value == opened.getpixel((opened.width // 2, 99)))


def test_right_models_pass() -> None:
    assert PICTURE_CHECK.run(Model()) == "16 tokens for a picture, 4 of 4 colours are right"
    assert PICTURE_CHECK.run(Model("colours", random=True)) == "16 tokens for a picture"
    assert PICTURE_CHECK.run(Model(sees=False)) == "refused, because the model does not see"


@pytest.mark.parametrize(
    ("defect", "sees", "seen"),
    [
        ("blind", True, "a red and a blue picture have the same answer"),
        ("uncounted", True, "9 tokens, 9 with a picture and 9 with two"),
        ("mixed", True, "answer 2 of 3: they differ at token 1"),
        ("data URL", True, "the same picture as a data URL: they differ"),
        ("colours", True, "2 of 4 colours are wrong: red was called blue, blue was called red"),
        ("takes pictures", False, "taken by a model that does not see"),
    ],
)
def test_each_defect_fails(defect: str, sees: bool, seen: str) -> None:
    with pytest.raises(CheckFailed) as failed:
        PICTURE_CHECK.run(Model(defect, sees=sees))
    assert seen in failed.value.seen
    assert failed.value.likely
